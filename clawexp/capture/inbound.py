"""The harness's side of a connection, for harnesses of any manners.

mitmproxy's HTTP/1 server waits for the end of a request for as long as something comes, keeps whatever comes, takes a
client that has closed its own side for one that has left, and explains errors in HTML. This one does none of it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from mitmproxy import connection, http
from mitmproxy.connection import ConnectionState
from mitmproxy.net.http import http1
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http._events import HttpEvent, ResponseData, ResponseProtocolError
from mitmproxy.proxy.layers.http._http1 import Http1Server

from clawexp.capture.unserved import Unserved

HEAD_S, BODY_S, KEPT_S = 10.0, 120.0, 600.0
"""Time from a request's first byte to the end of its head, from there to the end of its body, and from an answer to the
next request."""
LONGEST_HEAD = 64 * 2**10
"""Bytes."""
LONGEST_AHEAD = 2**20
"""Bytes that a client may send while its request is answered: the next one, if it does not wait."""
MALFORMED = "The request is no HTTP that is understood here; look at its first line and its headers."


@dataclass
class HalfClosedHook(commands.StartHook):
    """A client will send nothing more; it may have left, or wait for the answer to what it has sent."""

    client: connection.Client
    blocking = False


class Inbound(Http1Server):
    """Bounded in time and bytes; serves a client that has closed its side; says what is wrong in JSON."""

    def __init__(self, context: Context, unserved: Unserved) -> None:
        super().__init__(context)
        self._unserved = unserved
        self._limit_s: float | None = None
        """While a request is awaited, the time that its next part may take; it is what the clock runs for."""
        self._half_closed = False

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        yield from super()._handle_event(event)
        self._time()

    def send(self, event: HttpEvent) -> layer.CommandGenerator[None]:
        if isinstance(event, ResponseProtocolError):
            return self._plainly(super().send(event), event.message)
        if isinstance(event, ResponseData) and self.request and self.request.method == "HEAD":
            return _nothing()
        return super().send(event)

    def read_headers(self, event: events.ConnectionEvent) -> layer.CommandGenerator[None]:
        yield from self._plainly(super().read_headers(event), MALFORMED)
        if self.state == self.read_headers and len(self.buf) > LONGEST_HEAD:
            yield from self._turned_away(431, f"The head of a request may have {LONGEST_HEAD} bytes.")

    def read_body(self, event: events.Event) -> layer.CommandGenerator[None]:
        try:
            for command in super().read_body(event):
                if isinstance(command, commands.CloseConnection) and not self.request_done and self.conn.connected:
                    yield commands.SendData(self.conn, error_response(400, "The chunks of the body are malformed."))
                yield command
        except NotImplementedError:  # mitmproxy's way to say that it reads no trailers
            yield from self._turned_away(400, "A request whose chunks have a trailer is not read.")
        if self.state == self.read_body and len(self.buf) > LONGEST_HEAD:
            yield from self._turned_away(431, f"What stands between chunks may have {LONGEST_HEAD} bytes.")

    def wait(self, event: events.Event) -> layer.CommandGenerator[None]:
        ended = isinstance(event, events.ConnectionClosed)
        # To a client that is older nothing can be sent before its answer, by which it would show that it has left.
        if ended and self.conn.state is ConnectionState.CAN_WRITE and self.request and self.request.is_http11:
            self._half_closed = True
            yield HalfClosedHook(self.context.client)
            return
        if not ended and len(self.buf) > LONGEST_AHEAD:
            event = events.ConnectionClosed(self.conn)
        yield from super().wait(event)

    def mark_done(self, *, request: bool = False, response: bool = False) -> layer.CommandGenerator[None]:
        yield from super().mark_done(request=request, response=response)
        if self._half_closed and response and self.state in (self.read_headers, self.read_body):
            yield commands.CloseConnection(self.conn)

    def _plainly(self, said: layer.CommandGenerator[None], message: str) -> layer.CommandGenerator[None]:
        """What mitmproxy sends of its own is an error page; JSON is sent in its place."""
        for command in said:
            if isinstance(command, commands.SendData) and b"text/html" in command.data:
                status = int(command.data.split(b" ", 2)[1])
                command = commands.SendData(self.conn, error_response(status, message))
            yield command

    def _turned_away(self, status: int, message: str) -> Iterator[commands.Command]:
        yield commands.SendData(self.conn, error_response(status, message))
        yield commands.CloseConnection(self.conn)
        self.state = self.done

    def _time(self) -> None:
        """Let the clock run for the part of a request that is awaited now, from when that began."""
        if self.state == self.passthrough:  # a tunnel: whoever reads what comes through it sees to the clock
            return
        limit_s = self._limit()
        if limit_s == self._limit_s:
            return
        self._limit_s = limit_s
        if limit_s is None:
            self._unserved.forget(self.context.client)
        else:
            self._unserved.expect(self.context.client, limit_s)

    def _limit(self) -> float | None:
        if not self.conn.connected:
            return None
        if self.state == self.read_body:
            return BODY_S
        if self.state == self.read_headers:
            return HEAD_S if self.buf else KEPT_S
        return None


def error_response(status: int, message: str) -> bytes:
    """A whole response that ends its connection: an error as OpenAI and Anthropic both read it."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    headers = {"content-type": "application/json", "connection": "close"}
    body = json.dumps({"type": "error", "error": error}).encode()
    return http1.assemble_response(http.Response.make(status, body, headers))


def _nothing() -> layer.CommandGenerator[None]:
    """Of an answer to HEAD, the body: whoever keeps the connection would take it for the next answer."""
    yield from ()
