"""Warm things by kind: handed out, made as new behind the back of whoever gave them back, and handed out again.

As many of a kind are kept as were out, or on their way back, at once lately; of all kinds together at most a given
number, and the kind that nobody asks for goes first. What cannot be made as new is thrown away and replaced.
"""

import asyncio
import collections
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from clawexp.errors import RuntimeFault
from clawexp.runtime.process import to_the_end

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Hashable)
Thing = TypeVar("Thing")

FORGOTTEN = 0.125
"""By how much the number of a kind falls with each return, where fewer are out."""


@dataclass(eq=False)
class _Held(Generic[Kind, Thing]):
    kind: Kind
    thing: Thing
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)


class Pool(Generic[Kind, Thing]):
    """Made by `pool` alone."""

    def __init__(
        self,
        make: Callable[[Kind], AbstractAsyncContextManager[Thing]],
        renew: Callable[[Thing], Awaitable[bool]],
        most: int,
        creators: int,
    ) -> None:
        self._make, self._renew, self._most = make, renew, most
        self._creators = asyncio.Semaphore(creators)
        self._tasks: set[asyncio.Future[None]] = set()
        self._unforeseen: BaseException | None = None
        self._all: set[_Held[Kind, Thing]] = set()
        self._idle: list[_Held[Kind, Thing]] = []
        self._out: collections.Counter[Kind] = collections.Counter()
        self._peak: dict[Kind, float] = {}
        self.counts = collections.Counter({"warm": 0, "made": 0, "thrown_away": 0})
        """Leases that found one, things made, and things that could not be made as new."""

    @contextlib.asynccontextmanager
    async def leased(self, kind: Kind) -> AsyncIterator[Thing]:
        """One for the caller alone: warm where there is one, else made now."""
        if self._unforeseen is not None:
            raise self._unforeseen
        self._out[kind] += 1
        self._peak[kind] = max(self._peak.get(kind, 0.0), self._out[kind])
        held = None
        try:
            held = self._popped(kind) or await self._made(kind)
            yield held.thing
        finally:
            if held is None:
                self._out[kind] -= 1
            else:
                task = asyncio.ensure_future(self._returned(held))
                self._tasks.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._unforeseen = self._unforeseen or task.exception()

    def _popped(self, kind: Kind) -> _Held[Kind, Thing] | None:
        for held in reversed(self._idle):
            if held.kind == kind:
                self._idle.remove(held)
                self.counts["warm"] += 1
                return held
        return None

    async def _made(self, kind: Kind) -> _Held[Kind, Thing]:
        async with self._creators, contextlib.AsyncExitStack() as stack:
            thing = await stack.enter_async_context(self._make(kind))
            self.counts["made"] += 1
            held = _Held(kind, thing, stack.pop_all())
            self._all.add(held)
            return held

    async def _returned(self, held: _Held[Kind, Thing]) -> None:
        try:
            await self._kept_or_closed(held)
        except (RuntimeFault, OSError) as fault:
            log.warning("%s", fault)
        finally:
            self._out[held.kind] -= 1

    async def _kept_or_closed(self, held: _Held[Kind, Thing]) -> None:
        kind = held.kind
        self._peak[kind] = max(float(self._out[kind]), self._peak[kind] - FORGOTTEN)
        if not self._is_wanted(kind):
            await self._close(held)
            return
        if not await self._is_renewed(held):
            self.counts["thrown_away"] += 1
            await self._close(held)
            held = await self._made(kind)
        self._idle.append(held)
        while len(self._idle) > self._most:
            await self._close(self._idle.pop(0))

    def _is_wanted(self, kind: Kind) -> bool:
        """Whether one that comes back is, beside the others."""
        others = sum(held.kind == kind for held in self._idle) + self._out[kind] - 1
        return others < round(self._peak[kind])

    async def _is_renewed(self, held: _Held[Kind, Thing]) -> bool:
        async with self._creators:
            try:
                return await self._renew(held.thing)
            except (RuntimeFault, OSError) as fault:
                log.warning("a sandbox could not be made as new and is thrown away: %s", fault)
                return False

    async def _close(self, held: _Held[Kind, Thing]) -> None:
        async with self._creators:
            await to_the_end(held.stack.aclose())
            self._all.discard(held)

    async def close(self) -> None:
        """Close what there is, a few at a time."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        async with asyncio.TaskGroup() as group:
            for held in [*self._all]:
                group.create_task(self._close(held))


@contextlib.asynccontextmanager
async def pool(
    make: Callable[[Kind], AbstractAsyncContextManager[Thing]],
    renew: Callable[[Thing], Awaitable[bool]],
    *,
    most: int,
    creators: int,
) -> AsyncIterator[Pool[Kind, Thing]]:
    """An empty one, while the context lasts.

    `renew` makes a thing as new, or says that it cannot. `most`: idle things of all kinds. `creators`: how many are
    made, made as new or closed at once.
    """
    made = Pool(make, renew, most, creators)
    try:
        yield made
    finally:
        await to_the_end(made.close())
