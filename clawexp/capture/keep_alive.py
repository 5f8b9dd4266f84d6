"""A client that waits for a stream hears something while its answer is made.

mitmproxy sends what an addon answers only as a whole. Its HTTP stream is taught here to ask for the answer beside
itself, and to send the stream's head and pings until it is there. It is also taught to tell hooks on the spot where
nobody takes his time, and to send in one piece what it sends at once.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field

from mitmproxy import ctx, http
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import HttpLayer, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import ResponseData, ResponseHeaders

from clawexp.capture.listeners import Listeners
from clawexp.capture.message import Reply

PING_S = 5.0
"""Clients and what lies between give up on a silent connection after some ten seconds at the earliest."""
STREAM = "text/event-stream; charset=utf-8"


@dataclass(eq=False)
class Awaited:
    """An answer that is being made."""

    reply: Reply
    """What is sent if nothing better comes."""
    ping: bytes = b""
    """What may be sent meanwhile; nothing while it is not known that the client waits for a stream."""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        """Until it is done, or until a ping is due."""
        while not self.done.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await self.done.wait()
            if self.ping:
                return

    def rest(self) -> bytes:
        """The answer as the rest of a stream that has begun; a refusal comes too late for its status."""
        return self.reply.body if self.reply.status == 200 else self.reply.late


@dataclass
class AnswerHook(commands.StartHook):
    """Make the answer to a flow. The stream goes on meanwhile."""

    flow: http.HTTPFlow
    blocking = False


@dataclass
class AwaitAnswerHook(commands.StartHook):
    """Let time pass until the answer is there or a ping is due."""

    flow: http.HTTPFlow


class AnsweredStream(HttpStream):
    """One request and its response. Where it is made here, the addon has put an `Awaited` into the flow's
    metadata."""

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

    def send_response(self, already_streamed: bool = False) -> layer.CommandGenerator[None]:
        awaited: Awaited | None = self.flow.metadata.get("awaited")
        if awaited is None:
            yield from super().send_response(already_streamed)
            return
        yield AnswerHook(self.flow)
        yield AwaitAnswerHook(self.flow)
        pinged = False
        while not awaited.done.is_set():
            if not pinged:
                yield SendHttp(ResponseHeaders(self.stream_id, _stream_head(), False), self.context.client)
            pinged = True
            yield SendHttp(ResponseData(self.stream_id, awaited.ping), self.context.client)
            yield AwaitAnswerHook(self.flow)
        reply = awaited.reply
        self.flow.response = http.Response.make(reply.status, reply.body, dict(reply.headers))
        if pinged:
            yield SendHttp(ResponseData(self.stream_id, awaited.rest()), self.context.client)
        yield from super().send_response(already_streamed=pinged)

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


def _stream_head() -> http.Response:
    head = http.Response.make(200, b"", {"content-type": STREAM, "cache-control": "no-cache"})
    del head.headers["content-length"]
    head.headers["transfer-encoding"] = "chunked"
    return head
