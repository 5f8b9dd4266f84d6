"""Anthropic messages: `POST /v1/messages`, streamed and not, `POST /v1/messages/count_tokens` and
`GET /v1/models`."""

from collections.abc import Mapping
from typing import Any

from clawexp.capture.dialects.anthropic_answer import events, whole
from clawexp.capture.dialects.anthropic_content import read_messages, read_system, read_tools
from clawexp.capture.dialects.body import read_object
from clawexp.capture.meaning import stringify
from clawexp.capture.message import Answer, RefusalKind, Refused, Reply, Request, TooLong

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
MODELS = "/v1/models"
SHAPING = ("temperature", "top_p", "top_k", "stop_sequences", "max_tokens")
SIDE_CLASSES = frozenset(("subagent", "workflow", "auxiliary", "side_reply"))
"""What Claude Code calls its requests beside the main conversation, in its own header."""
ERRORS: Mapping[RefusalKind, tuple[int, str]] = {
    "unknown_key": (401, "authentication_error"),
    "not_found": (404, "not_found_error"),
    "invalid_request": (400, "invalid_request_error"),
    "context_length": (400, "invalid_request_error"),
    "unavailable": (529, "overloaded_error"),
}


class AnthropicMessages:
    """The dialect of Anthropic's API, as Claude Code and others speak it."""

    name = "anthropic_messages"
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def serves(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        if method == "POST":
            return path in (MESSAGES, COUNT)
        is_models = path == MODELS or path.startswith(f"{MODELS}/")
        # The same path in OpenAI's dialect: only these clients name the version of their API.
        return method == "GET" and is_models and "anthropic-version" in headers

    def key(self, headers: Mapping[str, str]) -> str:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return headers.get("x-api-key", "").strip() or (token.strip() if scheme.lower() == "bearer" else "")

    def retried(self, headers: Mapping[str, str]) -> bool:
        return headers.get("x-stainless-retry-count", "0") != "0"

    def about(self, method: str, path: str, model: str) -> Reply | None:
        entry = {"type": "model", "id": model, "display_name": model, "created_at": "1970-01-01T00:00:00Z"}
        if method == "POST":
            return None
        if path == MODELS:
            return _json(200, {"data": [entry], "has_more": False, "first_id": model, "last_id": model})
        if path.removeprefix(f"{MODELS}/") == model:
            return _json(200, entry)
        raise Refused("not_found", f"model: {path.removeprefix(f'{MODELS}/')}")

    def counts(self, method: str, path: str) -> bool:
        return path == COUNT

    def count(self, tokens: int) -> Reply:
        return _json(200, {"input_tokens": tokens})

    def read(self, headers: Mapping[str, str], body: bytes) -> Request:
        content = read_object(body)
        system, edits = read_system(content.get("system"))
        return Request(
            messages=(*system, *read_messages(content.get("messages"), content.get("tools"))),
            tools=read_tools(content.get("tools")),
            requested=_requested(content),
            max_tokens=_max_tokens(content),
            stream=bool(content.get("stream")),
            stream_usage=True,
            auxiliary=_is_aside(headers, content),
            edits=edits,
        )

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        if not request.stream:
            return _json(200, whole(answer, model))
        body = "".join(f"event: {event['type']}\ndata: {stringify(event)}\n\n" for event in events(answer, model))
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return Reply(status=200, body=body.encode(), headers=headers)

    def refuse(self, refused: Refused) -> Reply:
        status, kind = ERRORS[refused.kind]
        error = {"type": "error", "error": {"type": kind, "message": _reason(refused)}}
        return _json(status, error, {"retry-after": "2"} if refused.kind == "unavailable" else {})


def _requested(content: Mapping[str, Any]) -> dict[str, Any]:
    """What would shape sampling. The default choice of tools is named as elsewhere."""
    requested = {name: content[name] for name in SHAPING if name in content}
    if "tool_choice" in content:
        choice = content["tool_choice"]
        requested["tool_choice"] = "auto" if choice == {"type": "auto"} else choice
    if (form := _output_format(content)) is not None:
        requested["output_format"] = form
    return requested


def _output_format(content: Mapping[str, Any]) -> Any:
    """The schema that the answer should follow: in its own field, or in the one that replaced it."""
    config = content.get("output_config")
    return content.get("output_format") or (config.get("format") if isinstance(config, dict) else None)


def _max_tokens(content: Mapping[str, Any]) -> int | None:
    value = content.get("max_tokens")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise Refused("invalid_request", f"max_tokens: must be a whole number of at least 1, not {value!r}")
    return value


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


def _json(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Reply:
    head = {"content-type": "application/json", **(headers or {})}
    return Reply(status=status, body=stringify(content).encode(), headers=head)
