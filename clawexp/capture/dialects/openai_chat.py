"""OpenAI chat completions: `POST /v1/chat/completions`, streamed and not, and `GET /v1/models`."""

import json
from collections.abc import Mapping
from typing import Any

from clawexp.capture.dialects.body import read_object
from clawexp.capture.dialects.openai_messages import read_messages, read_tools
from clawexp.capture.meaning import arguments_text
from clawexp.capture.message import Answer, RefusalKind, Refused, Reply, Request, TooLong
from clawexp.capture.sampling import NEUTRAL

SHAPING = ("temperature", *NEUTRAL, "max_tokens", "max_completion_tokens")
ERRORS: Mapping[RefusalKind, tuple[int, str, str | None, str | None]] = {
    "unknown_key": (401, "invalid_request_error", None, "invalid_api_key"),
    "not_found": (404, "invalid_request_error", None, None),
    "invalid_request": (400, "invalid_request_error", None, None),
    "context_length": (400, "invalid_request_error", "messages", "context_length_exceeded"),
    "unavailable": (503, "server_error", None, "engine_unavailable"),
}
"""Status, type, param and code."""


class OpenAIChat:
    """The chat dialect of OpenAI and of the many servers that speak it."""

    name = "openai_chat"
    ping = b": waiting\n\n"

    def serves(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        asks = method == "GET" and (path == "/v1/models" or path.startswith("/v1/models/"))
        return asks or (method == "POST" and path == "/v1/chat/completions")

    def key(self, headers: Mapping[str, str]) -> str:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def retried(self, headers: Mapping[str, str]) -> bool:
        return headers.get("x-stainless-retry-count", "0") != "0"

    def about(self, method: str, path: str, model: str) -> Reply | None:
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "clawexp"}
        if method == "POST":
            return None
        if path == "/v1/models":
            return _json(200, {"object": "list", "data": [entry]})
        if path.removeprefix("/v1/models/") == model:
            return _json(200, entry)
        raise Refused("not_found", f"The model {path.removeprefix('/v1/models/')!r} does not exist.")

    def read(self, headers: Mapping[str, str], body: bytes) -> Request:
        content = read_object(body)
        options = content.get("stream_options") or {}
        return Request(
            messages=read_messages(content.get("messages")),
            tools=read_tools(content.get("tools")),
            requested={name: content[name] for name in SHAPING if name in content},
            max_tokens=_max_tokens(content),
            stream=bool(content.get("stream")),
            stream_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        )

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        head = {"id": f"chatcmpl-{answer.id}", "created": answer.created, "model": model}
        if request.stream:
            return _stream(head, request, answer)
        choice = {"index": 0, "message": _message(answer), "logprobs": None, "finish_reason": answer.finish}
        return _json(200, {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(answer)})

    def refuse(self, refused: Refused) -> Reply:
        status, kind, param, code = ERRORS[refused.kind]
        error = {"message": _reason(refused), "type": kind, "param": param, "code": code}
        return _json(status, {"error": error}, {"retry-after": "2"} if status == 503 else {})


def _reason(refused: Refused) -> str:
    if not isinstance(refused, TooLong):
        return str(refused)
    return (
        f"This model's maximum context length is {refused.context} tokens. However, your messages resulted in "
        f"{refused.prompt_tokens} tokens. Please reduce the length of the messages."
    )


def _max_tokens(content: Mapping[str, Any]) -> int | None:
    value = content.get("max_completion_tokens", content.get("max_tokens"))
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused("invalid_request", f"max_completion_tokens must be a whole number of at least 1, not {value!r}.")
    return value


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


def _stream(head: Mapping[str, Any], request: Request, answer: Answer) -> Reply:
    """All events of a stream, each in the shape in which OpenAI sends it."""
    message = answer.message
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if message.reasoning:
        deltas.append({"reasoning_content": message.reasoning})
    if message.content:
        deltas.append({"content": message.content})
    for index, call in enumerate(_tool_calls(answer)):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": answer.finish})
    chunk = {**head, "object": "chat.completion.chunk", **({"usage": None} if request.stream_usage else {})}
    chunks = [{**chunk, "choices": [choice]} for choice in choices]
    if request.stream_usage:
        chunks.append({**chunk, "choices": [], "usage": _usage(answer)})
    events = [*(_dumps(chunk) for chunk in chunks), b"[DONE]"]
    body = b"".join(b"data: %s\n\n" % event for event in events)
    return Reply(
        status=200,
        body=body,
        headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"},
    )


def _json(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status=status, body=_dumps(content), headers={"content-type": "application/json", **(headers or {})})


def _dumps(content: Any) -> bytes:
    # A model can sample half of a surrogate pair inside a JSON string; it is no UTF-8.
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
