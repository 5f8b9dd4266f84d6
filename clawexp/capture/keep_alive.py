"""A client that waits for a stream hears something while its answer is made.

mitmproxy sends what an addon answers only as a whole. Its HTTP stream is taught here to ask for the answer beside
itself, and to send the stream's head and pings until it is there. It is also taught to tell hooks on the spot where
nobody takes his time, to send in one piece what it sends at once, and to hold no body that is not wanted.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

from mitmproxy import ctx, http
from mitmproxy.net.http.http1 import expected_http_body_size
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import HttpLayer, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import ResponseData, ResponseHeaders

from clawexp.capture.awaited import AnswerHook, AwaitAnswerHook, Awaited, AwaitResetHook
from clawexp.capture.client import has_left
from clawexp.capture.decoding import LONGEST_BODY
from clawexp.capture.dialects.reply import STREAM
from clawexp.capture.listeners import Listeners
from clawexp.capture.upstream import LONGEST_KEPT

UNASKED = 64 * 2**10
"""Bytes of a body that are held before it is known who sends it."""


@dataclass
class LargeBodyHook(commands.StartHook):
    """Say in the flow's metadata, as `may_send`, whether its sender is known. Told at once."""

    flow: http.HTTPFlow


@dataclass
class RecallHook(commands.StartHook):
    """Answer a flow from the cache, if that can be."""

    flow: http.HTTPFlow


@dataclass
class KeepHook(commands.StartHook):
    """Put a host's response into the cache."""

    flow: http.HTTPFlow


class AnsweredStream(HttpStream):
    """One request and its response. Where it is made here, the addon has put an `Awaited` into the flow's metadata."""

    _may_hold: int | None = None
    """Bytes of the request's body; None while nobody was asked."""

    def handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        for command in super().handle_event(event):
            if not isinstance(command, commands.StartHook) or not _told(command):
                yield command
            elif command.blocking:
                yield from self.handle_event(events.HookCompleted(command))

    def check_invalid(self, request: bool) -> layer.CommandGenerator[bool]:
        if request:  # the first look at it: mitmproxy will make every request look as if sent to its host
            asked = self.flow.request
            self.flow.metadata["absolute"] = bool(asked.authority)
            if not asked.authority:
                asked.data.host, asked.data.port, asked.data.scheme = "127.0.0.1", 80, b"http"
        return (yield from super().check_invalid(request))

    def check_body_size(self, request: bool) -> layer.CommandGenerator[bool]:
        if not request:
            yield from self._pass_on()
        elif self._may_hold is not None or len(self.request_body_buf) > UNASKED:
            yield from self._hold()
        return False

    def _hold(self) -> layer.CommandGenerator[None]:
        """Drop what is too much of a request's body, and count it. All of it is read: a client that is cut off while
        it sends does not hear why."""
        metadata = self.flow.metadata
        if self._may_hold is None:
            yield LargeBodyHook(self.flow)
            self._may_hold = LONGEST_BODY if metadata.pop("may_send", False) else 0
        if len(self.request_body_buf) > self._may_hold:
            metadata["dropped"] = metadata.get("dropped", 0) + len(self.request_body_buf)
            self.request_body_buf.clear()
            self._may_hold = 0

    def _pass_on(self) -> layer.CommandGenerator[None]:
        """Send a host's response on as it comes, unless it is to be kept."""
        response = self.flow.response
        assert response is not None
        size = len(self.response_body_buf) or self._declared()
        if response.stream or ("keep" in self.flow.metadata and size <= LONGEST_KEPT):
            return
        self.flow.metadata.pop("keep", None)
        response.stream = True
        if self.response_body_buf:
            begun = bytes(self.response_body_buf)
            self.response_body_buf.clear()
            yield from self.start_response_stream()
            yield from self.handle_event(ResponseData(self.stream_id, begun))

    def _declared(self) -> int:
        """Bytes of the host's response, 0 where it does not say."""
        try:
            return expected_http_body_size(self.flow.request, self.flow.response) or 0
        except ValueError:  # which is refused next
            return 0

    def make_server_connection(self) -> layer.CommandGenerator[bool]:
        if "keep" in self.flow.metadata:
            yield RecallHook(self.flow)
            if self.flow.response is not None:
                yield from self.send_response()
                return False
        return (yield from super().make_server_connection())

    def send_response(self, already_streamed: bool = False) -> layer.CommandGenerator[None]:
        awaited: Awaited | None = self.flow.metadata.get("awaited")
        if awaited is None:
            if "keep" in self.flow.metadata:
                yield KeepHook(self.flow)
            yield from super().send_response(already_streamed)
            return
        yield AnswerHook(self.flow)
        yield AwaitAnswerHook(self.flow)
        pinged = False
        while not awaited.done:
            if awaited.ping and not pinged:
                yield SendHttp(ResponseHeaders(self.stream_id, self._stream_head(), False), self.context.client)
                pinged = True
            yield from self._say_something(awaited, pinged)
            yield AwaitAnswerHook(self.flow)
        if awaited.half_closed:  # so that it is known whether the answer is delivered
            yield from self._say_something(awaited, pinged)
        reply = awaited.reply
        self.flow.response = http.Response.make(reply.status, reply.body, dict(reply.headers))
        if pinged:
            yield SendHttp(ResponseData(self.stream_id, awaited.rest()), self.context.client)
        yield from super().send_response(already_streamed=pinged)

    def _say_something(self, awaited: Awaited, pinged: bool) -> layer.CommandGenerator[None]:
        """A client that has closed its side answers with a reset if it has left; then all that waits for it ends."""
        if pinged:
            yield SendHttp(ResponseData(self.stream_id, awaited.ping), self.context.client)
        elif not has_left(self.context.client):
            yield SendHttp(ResponseHeaders(self.stream_id, _go_on()), self.context.client)
        if awaited.half_closed:
            yield AwaitResetHook(self.flow)
            if has_left(self.context.client):
                yield commands.CloseConnection(self.context.client)

    def _stream_head(self) -> http.Response:
        head = http.Response.make(200, b"", dict(STREAM))
        del head.headers["content-length"]
        if self.flow.request.is_http11:
            head.headers["transfer-encoding"] = "chunked"
        else:  # the connection's end is the stream's
            head.headers["connection"] = "close"
        return head

    def flow_done(self) -> layer.CommandGenerator[None]:
        """What the stream holds goes with it: it refers to itself here, and would wait for a full collection."""
        yield from super().flow_done()
        if self.child_layer is None:
            self.context.layers.remove(self)
            self.client_state = self.server_state = _over


class AnsweredHttp(HttpLayer):
    """A client's HTTP connection, whose requests are all answered here."""

    def handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        pieces: list[bytes] = []
        for command in super().handle_event(event):
            if isinstance(command, commands.SendData) and command.connection is self.context.client:
                pieces.append(command.data)
                continue
            yield from self._sent(pieces)
            yield command
        yield from self._sent(pieces)

    def _sent(self, pieces: list[bytes]) -> Iterator[commands.SendData]:
        """Head, body and end of a response are one write, and wake the client once."""
        if pieces:
            yield commands.SendData(self.context.client, b"".join(pieces))
            pieces.clear()

    def make_stream(self, stream_id: int) -> layer.CommandGenerator[None]:
        context = copy(self.context)  # `fork` would make another upstream connection, too
        context.layers = context.layers.copy()
        self.streams[stream_id] = AnsweredStream(context, stream_id)
        yield from self.event_to_child(self.streams[stream_id], events.Start())


def _told(hook: commands.StartHook) -> bool:
    listeners = ctx.master.addons
    assert isinstance(listeners, Listeners)
    return listeners.tell_at_once(hook)


def _over(_event: events.Event) -> layer.CommandGenerator[None]:
    """The state of a stream that is done."""
    yield from ()


def _go_on() -> http.Response:
    """What may come before any answer, and means nothing."""
    head = http.Response.make(100)
    head.headers.clear()
    return head
