"""Which of many hosts holds the next sandbox. Knows nothing of what a host is.

Whoever finds all places taken waits in line, and the first in line has the next place wherever it is: any host can
hold any sandbox, so nobody is overtaken and nobody waits for ever.
"""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from clawexp.errors import RuntimeFault

Placing = Literal["fill", "spread"]
"""`fill`: hosts that are in use first, so that others stay free; `spread`: the host that is used least."""

READY = 0.125
"""A host that may have a sandbox of the kind ready is worth as much as one that is used less by this share."""


@dataclass(eq=False)
class Host:
    """One host, as the placer sees it."""

    name: str
    places: int
    """Sandboxes at once."""
    taken: int = 0
    ready: collections.Counter[Hashable] = field(default_factory=collections.Counter)
    """Sandboxes of each kind that were given back here: its pool may have them warm."""
    drained: str | None = None
    """Why nothing is placed here; None where something is."""

    @property
    def is_free(self) -> bool:
        return self.drained is None and self.taken < self.places


class Placer:
    """Hands out places on hosts. `Placer({"node1": 64, "node2": 32}, "spread")`"""

    def __init__(self, places: Mapping[str, int], placing: Placing) -> None:
        self.hosts = {name: Host(name, number) for name, number in places.items()}
        self._placing = placing
        self._line: collections.deque[tuple[Hashable, asyncio.Future[Host]]] = collections.deque()

    @contextlib.asynccontextmanager
    async def place(self, kind: Hashable) -> AsyncIterator[str]:
        """The name of a host that has a place for a sandbox of this kind, while the context lasts.

        Raises RuntimeFault where all hosts are drained, also when that comes about while it waits.
        """
        host = await self._taken(kind)
        try:
            yield host.name
        finally:
            host.ready[kind] += 1
            self._free(host)

    def drain(self, name: str, reason: str) -> None:
        """Place nothing there any more. What is there stays until it is given back."""
        self.hosts[name].drained = reason
        self.hosts[name].ready.clear()
        if (nowhere := self._nowhere()) is not None:
            while self._line:
                waiting = self._line.popleft()[1]
                if not waiting.done():
                    waiting.set_exception(nowhere)

    def restore(self, name: str) -> None:
        """Place there again."""
        self.hosts[name].drained = None
        self._serve()

    async def _taken(self, kind: Hashable) -> Host:
        if (nowhere := self._nowhere()) is not None:
            raise nowhere
        waiting: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
        self._line.append((kind, waiting))
        self._serve()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._free(waiting.result())  # cancelled in the moment that it was served
            raise

    def _free(self, host: Host) -> None:
        host.taken -= 1
        self._serve()

    def _serve(self) -> None:
        """Give places to those in line, in their order."""
        while self._line:
            kind, waiting = self._line[0]
            if not waiting.done():
                host = self._chosen(kind)
                if host is None:
                    return
                host.taken += 1
                host.ready[kind] = max(host.ready[kind] - 1, 0)
                waiting.set_result(host)
            self._line.popleft()

    def _chosen(self, kind: Hashable) -> Host | None:
        free = [host for host in self.hosts.values() if host.is_free]
        return min(free, key=lambda host: self._cost(host, kind), default=None)

    def _cost(self, host: Host, kind: Hashable) -> float:
        used = host.taken / host.places
        return (used if self._placing == "spread" else -used) - (READY if host.ready[kind] else 0)

    def _nowhere(self) -> RuntimeFault | None:
        if any(host.drained is None for host in self.hosts.values()):
            return None
        reasons = "; ".join(f"{host.name}: {host.drained}" for host in self.hosts.values())
        return RuntimeFault(f"no host is left that sandboxes can be placed on: {reasons}")
