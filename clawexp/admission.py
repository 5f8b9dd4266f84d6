"""How many rollouts this machine takes at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from clawexp.errors import RuntimeFault


class MemoryGate:
    """Lets rollouts start while their number and their harness's memory fit."""

    def __init__(self, max_concurrency: int, memory_share: float) -> None:
        self._free = max_concurrency
        self._budget_mb = available_mb() * memory_share
        self._running = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def enter(self, memory_mb: int) -> AsyncIterator[None]:
        async with self._changed:
            # One rollout may always run: refusing for ever would only hide the shortage.
            await self._changed.wait_for(
                lambda: self._running == 0 or (self._free > 0 and self._budget_mb >= memory_mb)
            )
            self._take(1, memory_mb)
        try:
            yield
        finally:
            async with self._changed:
                self._take(-1, -memory_mb)
                self._changed.notify_all()

    def _take(self, number: int, memory_mb: int) -> None:
        self._running += number
        self._free -= number
        self._budget_mb -= memory_mb


def available_mb() -> int:
    """Memory that new processes can take, in MiB, by the kernel's own estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    raise RuntimeFault("/proc/meminfo has no MemAvailable line; clawexp needs Linux 3.14 or newer")
