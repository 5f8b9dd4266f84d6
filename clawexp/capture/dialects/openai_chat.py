"""OpenAI chat completions: `POST /v1/chat/completions`, streamed and not, and `GET /v1/models`."""

from collections.abc import Iterator, Mapping
from typing import Any

from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.dialects.fields import flag, mapping, read_object, shaping, token_limit
from clawexp.capture.dialects.headers import bearer, counted_retry
from clawexp.capture.dialects.models import about_models
from clawexp.capture.dialects.openai_error import error_of
from clawexp.capture.dialects.openai_messages import read_messages, read_tools
from clawexp.capture.dialects.reply import json_reply, refusal, stream_reply, unnamed
from clawexp.capture.meaning import arguments_text
from clawexp.capture.message import Answer, Refused, Reply, Request, TooLong
from clawexp.capture.sampling import NEUTRAL

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"
SHAPING = {name: name for name in ("temperature", *NEUTRAL, "max_tokens", "max_completion_tokens")}
DONE = b"data: [DONE]\n\n"


class OpenAIChat:
    """The chat dialect of OpenAI and of the many servers that speak it."""

    name = "openai_chat"
    vendor = "https://api.openai.com"
    ping = b": waiting\n\n"

    def serves(self, asked: Asked) -> bool:
        if asked.method == "POST":
            return asked.path == CHAT
        return asked.method == "GET" and (asked.path == MODELS or asked.path.startswith(f"{MODELS}/"))

    def resembles(self, asked: Asked) -> bool:
        return asked.path.startswith("/v1/chat/")

    def key(self, asked: Asked) -> str:
        return bearer(asked.headers)

    def retried(self, asked: Asked) -> bool:
        return counted_retry(asked.headers)

    def about(self, asked: Asked, model: str) -> Reply | None:
        if asked.method == "POST":
            return None
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "clawexp"}
        listing = {"object": "list", "data": [entry]}
        name = asked.path[len(MODELS) + 1 :]
        return about_models(name, model, entry, listing, f"The model {name!r} does not exist.")

    def read(self, asked: Asked, body: bytes) -> Request:
        content = read_object(asked.headers, body)
        options = mapping(content.get("stream_options"), "stream_options")
        tools, edits = read_tools(content.get("tools"))
        limit = "max_completion_tokens" if "max_completion_tokens" in content else "max_tokens"
        return Request(
            messages=read_messages(content.get("messages")),
            tools=tools,
            requested=shaping(content, SHAPING),
            max_tokens=token_limit(content.get(limit), limit),
            stream=flag(content.get("stream"), "stream"),
            stream_usage=flag(options.get("include_usage"), "stream_options.include_usage"),
            edits=edits,
        )

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        head = {"id": f"chatcmpl-{answer.id}", "created": answer.created, "model": model}
        if request.stream:
            return stream_reply(unnamed(_chunks(head, request, answer)) + DONE)
        choice = {"index": 0, "message": _message(answer), "logprobs": None, "finish_reason": answer.finish}
        return json_reply({**head, "object": "chat.completion", "choices": [choice], "usage": _usage(answer)})

    def refuse(self, refused: Refused, *, stream: bool) -> Reply:
        status, error = error_of(refused, _reason(refused), "messages")
        return refusal(refused.kind, status, {"error": error}, unnamed([{"error": error}]))


def _reason(refused: Refused) -> str:
    if not isinstance(refused, TooLong):
        return str(refused)
    return (
        f"This model's maximum context length is {refused.context} tokens. However, your messages resulted in "
        f"{refused.prompt_tokens} tokens. Please reduce the length of the messages."
    )


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.message.content or None,
        "refusal": None,
    }
    if answer.message.reasoning:
        message["reasoning_content"] = answer.message.reasoning
    if answer.message.tool_calls:
        message["tool_calls"] = _tool_calls(answer)
    return message


def _tool_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in answer.message.tool_calls
    ]


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.sampled_tokens,
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
    }


def _chunks(head: Mapping[str, Any], request: Request, answer: Answer) -> Iterator[dict[str, Any]]:
    """All events of a stream, each in the shape in which OpenAI sends it."""
    chunk = {**head, "object": "chat.completion.chunk", **({"usage": None} if request.stream_usage else {})}
    for delta in _deltas(answer):
        yield {**chunk, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": answer.finish}]}
    if request.stream_usage:
        yield {**chunk, "choices": [], "usage": _usage(answer)}


def _deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    message = answer.message
    yield {"role": "assistant", "content": ""}
    if message.reasoning:
        yield {"reasoning_content": message.reasoning}
    if message.content:
        yield {"content": message.content}
    for index, call in enumerate(_tool_calls(answer)):
        yield {"tool_calls": [{"index": index, **call}]}
