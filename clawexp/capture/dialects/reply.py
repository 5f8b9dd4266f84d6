"""What a dialect says -> an HTTP response, whole or as a stream of server-sent events."""

from collections.abc import Iterable, Mapping
from typing import Any

from clawexp.capture.meaning import stringify
from clawexp.capture.message import RefusalKind, Reply

STREAM: Mapping[str, str] = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
MORE_HEADERS: Mapping[RefusalKind, Mapping[str, str]] = {
    "unavailable": {"retry-after": "2"},
    "no_websocket": {"upgrade": "HTTP/1.1"},
}
"""What a refusal says beside its body."""


def json_reply(content: Any) -> Reply:
    return Reply(status=200, body=encoded(content), headers={"content-type": "application/json"})


def stream_reply(body: bytes) -> Reply:
    return Reply(status=200, body=body, headers=STREAM)


def refusal(kind: RefusalKind, status: int, content: Any, late: bytes) -> Reply:
    """An error. `late`: how a stream says it whose status has been sent."""
    headers = {"content-type": "application/json", **MORE_HEADERS.get(kind, {})}
    return Reply(status=status, body=encoded(content), headers=headers, late=late)


def unnamed(contents: Iterable[Any]) -> bytes:
    """Events that are data alone."""
    return b"".join(b"data: %s\n\n" % encoded(content) for content in contents)


def named(contents: Iterable[Mapping[str, Any]]) -> bytes:
    """Events that bear the name of their type."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (content["type"].encode(), encoded(content)) for content in contents)


def encoded(content: Any) -> bytes:
    return stringify(content).encode()
