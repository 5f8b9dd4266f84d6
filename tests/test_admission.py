"""Who may start, and who waits."""

import asyncio
from pathlib import Path

import pytest

from clawexp.admission import MemoryGate, available_mb
from clawexp.errors import RuntimeFault


def test_free_memory_is_part_of_what_the_machine_has() -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = int(next(line for line in lines if line.startswith("MemTotal:")).split()[1]) // 1024
    assert 0 < available_mb() <= total


async def test_a_cancelled_wait_at_the_gate_takes_no_place() -> None:
    gate = MemoryGate(1, 0.5)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        async with gate.enter(1):
            waiting = group.create_task(_enter(gate))
            await asyncio.sleep(0)
            waiting.cancel()
        await _enter(gate)
    async with asyncio.timeout(10), gate.enter(1):
        assert waiting.cancelled()


async def _enter(gate: MemoryGate) -> None:
    async with gate.enter(1):
        await asyncio.sleep(0)


async def test_a_place_is_given_back_when_what_runs_there_fails() -> None:
    gate = MemoryGate(1, 0.5)
    with pytest.raises(RuntimeFault):
        async with gate.enter(1):
            raise RuntimeFault("it died")
    async with asyncio.timeout(10):
        await _enter(gate)
