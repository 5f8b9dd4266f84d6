"""An answer that is being made, while its client waits."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from mitmproxy import http
from mitmproxy.proxy import commands

from clawexp.capture.message import Reply

PING_S = 5.0
"""Clients and what lies between give up on a silent connection after some ten seconds at the earliest."""
RESET_S = 0.05
"""After this long a client that has left has answered what was sent to it."""


@dataclass(eq=False)
class Awaited:
    """An answer that is being made."""

    reply: Reply
    """What is sent if nothing better comes."""
    ping: bytes = b""
    """What may be sent meanwhile; nothing while it is not known that the client waits for a stream."""
    half_closed: bool = False
    """The client will send nothing more, and may have left."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is done, and once when the client has closed its side."""
    done: bool = False

    def finish(self) -> None:
        self.done = True
        self.news.set()

    def half_close(self) -> None:
        self.half_closed = True
        self.news.set()

    async def wait(self) -> None:
        """Until it is done, or until the client should hear something."""
        while not self.done:
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await self.news.wait()
            if not self.done:
                self.news.clear()
            if self.ping or self.half_closed:
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
    """Let time pass until the answer is there or the client should hear something."""

    flow: http.HTTPFlow


@dataclass
class AwaitResetHook(commands.StartHook):
    """Let time pass until a client that has left would have said so."""

    flow: http.HTTPFlow
