"""OpenAI responses: `POST /v1/responses`, streamed and not, and `POST /v1/responses/input_tokens`.

Nothing is kept between requests: each brings its whole conversation, as harnesses send it (`store: false`).
"""

import json
from collections.abc import Mapping
from typing import Any

from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.dialects.fields import flag, mapping, read_object, shaping, token_limit
from clawexp.capture.dialects.headers import bearer, counted_retry
from clawexp.capture.dialects.openai_error import error_of
from clawexp.capture.dialects.openai_items import read_freeform, read_input, read_tools
from clawexp.capture.dialects.openai_response import events, failed, whole
from clawexp.capture.dialects.reply import json_reply, named, refusal, stream_reply
from clawexp.capture.message import Answer, Refused, Reply, Request, TooLong

RESPONSES = "/v1/responses"
COUNT = "/v1/responses/input_tokens"
SHAPING = {
    name: name
    for name in ("temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "max_tool_calls")
}
STATEFUL = ("previous_response_id", "conversation", "prompt", "background")
"""Fields that refer to what an earlier request left, or leave something themselves."""
SIDE_KINDS = frozenset(("prewarm", "memory", "review"))


class OpenAIResponses:
    """The dialect of OpenAI's responses API, as Codex and others speak it."""

    name = "openai_responses"
    vendor = "https://api.openai.com"
    ping = b": waiting\n\n"

    def serves(self, asked: Asked) -> bool:
        return asked.path == RESPONSES or asked.path.startswith(f"{RESPONSES}/")

    def resembles(self, asked: Asked) -> bool:
        return False  # all paths that are its own are served, and errors are the same as in chat

    def key(self, asked: Asked) -> str:
        return bearer(asked.headers)

    def retried(self, asked: Asked) -> bool:
        return counted_retry(asked.headers)

    def about(self, asked: Asked, model: str) -> Reply | None:
        if asked.method == "POST" and asked.path in (RESPONSES, COUNT):
            return None
        raise Refused("not_found", f"Nothing is kept here: {asked.method} {asked.path} is not served.")

    def counts(self, asked: Asked) -> bool:
        return asked.path == COUNT

    def count(self, tokens: int) -> Reply:
        return json_reply({"object": "response.input_tokens", "input_tokens": tokens})

    def read(self, asked: Asked, body: bytes) -> Request:
        content = read_object(asked.headers, body)
        for name in STATEFUL:
            if content.get(name):
                raise Refused("invalid_request", f"{name}: nothing is kept between requests; send the whole input")
        tools, edits = read_tools(content.get("tools"))
        return Request(
            messages=read_input(content.get("instructions"), content.get("input")),
            tools=tools,
            requested=_requested(content),
            max_tokens=token_limit(content.get("max_output_tokens"), "max_output_tokens"),
            stream=flag(content.get("stream"), "stream"),
            stream_usage=True,
            freeform=read_freeform(content.get("tools")),
            auxiliary=_is_aside(asked.headers),
            edits=edits,
        )

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        if request.stream:
            return stream_reply(named(events(request, answer, model)))
        return json_reply(whole(request, answer, model))

    def refuse(self, refused: Refused, *, stream: bool) -> Reply:
        status, error = error_of(refused, _reason(refused), "input")
        late = named(failed(error))
        if stream and refused.kind == "context_length":
            # In a stream Codex takes note and makes room; at a bare 400 it gives up.
            return stream_reply(late)
        return refusal(refused.kind, status, {"error": error}, late)


def _requested(content: Mapping[str, Any]) -> dict[str, Any]:
    requested = shaping(content, SHAPING)
    form = mapping(content.get("text"), "text").get("format")
    return requested if form is None else {**requested, "response_format": form}


def _is_aside(headers: Mapping[str, str]) -> bool:
    """A helper's turn, or one of Codex's own kinds of request that is no turn of its conversation."""
    if headers.get("x-openai-subagent"):
        return True
    try:
        metadata = json.loads(headers.get("x-codex-turn-metadata", "{}"))
    except (ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and metadata.get("request_kind") in SIDE_KINDS


def _reason(refused: Refused) -> str:
    # Harnesses that are not Codex recognise the first half of this.
    if isinstance(refused, TooLong):
        numbers = f"{refused.prompt_tokens} tokens where {refused.context} are the limit"
        return (
            f"Your input exceeds the context window of this model ({numbers}). Please adjust your input and try again."
        )
    return str(refused)
