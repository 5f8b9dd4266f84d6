"""Rollouts that run side by side against one product, each a conversation that grows by a tool call and its result."""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

from load.checkpoint import excerpt
from load.dialects import Dialect
from load.process import Usage
from load.stub import TOOK

CALLS = 12
"""Of a rollout; the next one then takes its place."""
FIRST, RESULT = 4000, 1000
"""Characters of the first message and of each result: bodies grow from 13 kB to 29 kB."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A product that is being measured."""

    url: str
    pid: int
    """Of the process that stands between."""
    open: Callable[[], Awaitable[str]]
    """Begin a rollout; its key."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How much load, for how long."""

    rollouts: int
    warm_s: float
    measured_s: float


@dataclass(kw_only=True)
class Measured:
    """What one window showed."""

    added_ms: list[float] = field(default_factory=list)
    """Of calls that began in the window: their time less what the stub says that it took."""
    finished: int = 0
    """Calls that ended in the window."""
    failed: int = 0
    """Answers that were errors."""
    cpu_ms: float = 0.0
    """A call's, of the product's process."""
    kept_waiting_ms: float = 0.0
    """A call's, for which that process could have run and something else did."""
    calls_s: float = 0.0
    body_kb: float = 0.0
    """Mean size of a request."""

    def percentile(self, share: float) -> float:
        ordered = sorted(self.added_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


@dataclass(kw_only=True)
class Window:
    """The part of a run that counts."""

    begin: float
    end: float
    seen: Measured = field(default_factory=Measured)
    sizes: list[int] = field(default_factory=list)

    def note(self, begun: float, ended: float, size: int, text: str | None) -> None:
        """One call; `text` None: it failed."""
        if self.begin <= ended < self.end:
            self.seen.finished += 1
        if not self.begin <= begun < self.end:
            return
        took = TOOK.search(text or "")
        if took is None:
            self.seen.failed += 1
            return
        self.sizes.append(size)
        self.seen.added_ms.append(1000 * (ended - begun - float(took[1])))


async def drive(target: Target, dialect: Dialect, stream: bool, pace: Pace) -> Measured:
    """Keep `pace.rollouts` of them going, and look at the window after the warm-up."""
    now = time.perf_counter()
    window = Window(begin=now + pace.warm_s, end=now + pace.warm_s + pace.measured_s)
    numbers = itertools.count()
    async with asyncio.TaskGroup() as group:
        for lane in range(pace.rollouts):
            late_s = pace.warm_s / 2 * lane / pace.rollouts
            group.create_task(_lane(target, dialect, stream, window, numbers, late_s))
        await asyncio.sleep(pace.warm_s)
        before, begin = Usage.of(target.pid), time.perf_counter()
        await asyncio.sleep(window.end - begin)
        after, seconds = Usage.of(target.pid), time.perf_counter() - begin
    seen = window.seen
    calls = max(seen.finished, 1)
    seen.cpu_ms = 1000 * (after.cpu_s - before.cpu_s) / calls
    seen.kept_waiting_ms = 1000 * (after.kept_waiting_s - before.kept_waiting_s) / calls
    seen.calls_s = seen.finished / seconds
    seen.body_kb = sum(window.sizes) / max(len(window.sizes), 1) / 1000
    return seen


async def visit(target: Target, dialect: Dialect, rollouts: int, calls: int) -> None:
    """So many rollouts, of so many calls each, eight at a time."""
    now = time.perf_counter()
    window = Window(begin=now, end=float("inf"))
    numbers = itertools.count()

    async def some() -> None:
        async with _connection() as session:
            while (number := next(numbers)) < rollouts:
                await _rollout(session, target, dialect, False, window, number, calls)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(some())


async def _lane(
    target: Target, dialect: Dialect, stream: bool, window: Window, numbers: "itertools.count[int]", late_s: float
) -> None:
    """Rollout after rollout over one connection."""
    await asyncio.sleep(late_s)
    async with _connection() as session:
        while time.perf_counter() < window.end:
            await _rollout(session, target, dialect, stream, window, next(numbers), CALLS)


def _connection() -> aiohttp.ClientSession:
    """One, kept alive."""
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=600)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120))


async def _rollout(
    session: aiohttp.ClientSession,
    target: Target,
    dialect: Dialect,
    stream: bool,
    window: Window,
    number: int,
    calls: int,
) -> None:
    headers = dialect.headers(await target.open()) | {"content-type": "application/json"}
    history = [dialect.user(excerpt(number, FIRST))]
    for turn in range(calls):
        body = json.dumps(dialect.body(history, stream)).encode()
        begun = time.perf_counter()
        if begun >= window.end:
            return
        async with session.post(target.url + dialect.path(stream), data=body, headers=headers) as response:
            content = await response.read()
        ended = time.perf_counter()
        if response.status != 200:
            window.note(begun, ended, len(body), None)
            raise RuntimeError(f"{target.url} answered {response.status}: {content[:500]!r}")
        told = dialect.read(content, stream)
        window.note(begun, ended, len(body), told.text)
        results = (dialect.result(call, excerpt(number * CALLS + turn, RESULT)) for call in told.calls)
        history = [*history, *told.items, *results]
