"""Anthropic messages: `POST /v1/messages`, streamed and not, `POST /v1/messages/count_tokens` and
`GET /v1/models`."""

from collections.abc import Mapping
from typing import Any

from clawexp.capture.dialects.anthropic_answer import events, whole
from clawexp.capture.dialects.anthropic_content import read_messages, read_system, read_tools
from clawexp.capture.dialects.dialect import Asked, meant_for
from clawexp.capture.dialects.fields import flag, mapping, read_object, shaping, token_limit
from clawexp.capture.dialects.headers import bearer, counted_retry
from clawexp.capture.dialects.models import about_models
from clawexp.capture.dialects.reply import json_reply, named, refusal, stream_reply
from clawexp.capture.message import Answer, RefusalKind, Refused, Reply, Request, TooLong

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
MODELS = "/v1/models"
SHAPING = {name: name for name in ("temperature", "top_p", "top_k", "stop_sequences", "max_tokens", "tool_choice")}
SIDE_CLASSES = frozenset(("subagent", "workflow", "auxiliary", "side_reply"))
"""What Claude Code calls its requests beside the main conversation, in its own header."""
ERRORS: Mapping[RefusalKind, tuple[int, str]] = {
    "unknown_key": (401, "authentication_error"),
    "not_found": (404, "not_found_error"),
    "no_websocket": (426, "invalid_request_error"),
    "too_large": (413, "request_too_large"),
    "invalid_request": (400, "invalid_request_error"),
    "context_length": (400, "invalid_request_error"),
    "unavailable": (529, "overloaded_error"),
}


class AnthropicMessages:
    """The dialect of Anthropic's API, as Claude Code and others speak it."""

    name = "anthropic_messages"
    vendor = "https://api.anthropic.com"
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def serves(self, asked: Asked) -> bool:
        if asked.method == "POST":
            return asked.path in (MESSAGES, COUNT)
        is_models = asked.path == MODELS or asked.path.startswith(f"{MODELS}/")
        # The same path in OpenAI's dialect: only these clients name the version of their API.
        return asked.method == "GET" and is_models and "anthropic-version" in asked.headers

    def resembles(self, asked: Asked) -> bool:
        named = "anthropic-version" in asked.headers or "x-api-key" in asked.headers
        return named or (asked.path + "/").startswith(f"{MESSAGES}/") or meant_for(asked, self.vendor)

    def key(self, asked: Asked) -> str:
        return asked.headers.get("x-api-key", "").strip() or bearer(asked.headers)

    def retried(self, asked: Asked) -> bool:
        return counted_retry(asked.headers)

    def about(self, asked: Asked, model: str) -> Reply | None:
        if asked.method == "POST":
            return None
        entry = {"type": "model", "id": model, "display_name": model, "created_at": "1970-01-01T00:00:00Z"}
        listing = {"data": [entry], "has_more": False, "first_id": model, "last_id": model}
        name = asked.path[len(MODELS) + 1 :]
        return about_models(name, model, entry, listing, f"model: {name}")

    def counts(self, asked: Asked) -> bool:
        return asked.path == COUNT

    def count(self, tokens: int) -> Reply:
        return json_reply({"input_tokens": tokens})

    def read(self, asked: Asked, body: bytes) -> Request:
        content = read_object(asked.headers, body)
        system, edits = read_system(content.get("system"))
        tools, left_out = read_tools(content.get("tools"))
        return Request(
            messages=(*system, *read_messages(content.get("messages"), content.get("tools"))),
            tools=tools,
            requested=_requested(content),
            max_tokens=token_limit(content.get("max_tokens"), "max_tokens"),
            stream=flag(content.get("stream"), "stream"),
            stream_usage=True,
            auxiliary=_is_aside(asked.headers, content),
            edits=(*edits, *left_out),
        )

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        if request.stream:
            return stream_reply(named(events(answer, model)))
        return json_reply(whole(answer, model))

    def refuse(self, refused: Refused, *, stream: bool) -> Reply:
        status, kind = ERRORS[refused.kind]
        error = {"type": "error", "error": {"type": kind, "message": _reason(refused)}}
        return refusal(refused.kind, status, error, named([error]))


def _requested(content: Mapping[str, Any]) -> dict[str, Any]:
    """What would shape sampling. The default choice of tools is named as elsewhere."""
    requested = shaping(content, SHAPING)
    if "tool_choice" in requested:
        choice = mapping(requested["tool_choice"], "tool_choice")
        requested["tool_choice"] = "auto" if choice == {"type": "auto"} else choice
    if (form := _output_format(content)) is not None:
        requested["output_format"] = form
    return requested


def _output_format(content: Mapping[str, Any]) -> Any:
    """The schema that the answer should follow: in its own field, or in the one that replaced it."""
    config = content.get("output_config")
    return content.get("output_format") or (config.get("format") if isinstance(config, dict) else None)


def _is_aside(headers: Mapping[str, str], content: Mapping[str, Any]) -> bool:
    """A helper's turn, a probe of one token, or a question (a title, a topic) that wants its answer as data."""
    if headers.get("x-claude-code-request-class") in SIDE_CLASSES or "x-claude-code-agent-id" in headers:
        return True
    return content.get("max_tokens") == 1 or (not content.get("tools") and _output_format(content) is not None)


def _reason(refused: Refused) -> str:
    # Claude Code reads the numbers and compacts; in other words it gives up.
    if isinstance(refused, TooLong):
        return f"prompt is too long: {refused.prompt_tokens} tokens > {refused.context} maximum"
    return str(refused)
