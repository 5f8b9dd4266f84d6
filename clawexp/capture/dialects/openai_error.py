"""A refusal -> OpenAI's error object, which all of its APIs share."""

from collections.abc import Mapping
from typing import Any

from clawexp.capture.message import RefusalKind, Refused

ERRORS: Mapping[RefusalKind, tuple[int, str, str | None]] = {
    "unknown_key": (401, "invalid_request_error", "invalid_api_key"),
    "not_found": (404, "invalid_request_error", None),
    "no_websocket": (426, "invalid_request_error", "upgrade_refused"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "invalid_request": (400, "invalid_request_error", None),
    "context_length": (400, "invalid_request_error", "context_length_exceeded"),
    "unavailable": (503, "server_error", "engine_unavailable"),
}
"""Status, type and code."""


def error_of(refused: Refused, message: str, prompt: str) -> tuple[int, dict[str, Any]]:
    """Status and error. `prompt`: the field that holds the prompt."""
    status, kind, code = ERRORS[refused.kind]
    param = prompt if refused.kind == "context_length" else None
    return status, {"message": message, "type": kind, "param": param, "code": code}
