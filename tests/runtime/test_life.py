"""What the driver makes of a process 1 that dies, floods or lies; a true one is in test_inside.py."""

import asyncio
import contextlib
import itertools
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished
from clawexp.runtime.cgroup import Group, Limits
from clawexp.runtime.life import Life, greeted, heard_report, lived, order

LIAR = """
import os, socket, sys, time
driver = socket.socket(fileno=int(sys.argv[1]))
data, descriptors, _, _ = socket.recv_fds(driver, 1 << 20, 3)
{script}
"""
Liars = Callable[..., contextlib.AbstractAsyncContextManager[Life]]


class Counting(Group):
    """No groups, but what they would count: at the beginning of a command and at its end."""

    def __init__(self, kills: Sequence[int]) -> None:
        super().__init__([], "none", Limits(memory_mb=1, cpus=1.0, pids=1))
        self._kills = itertools.chain(kills, itertools.repeat(kills[-1]))

    def shortages(self) -> list[int]:
        return [next(self._kills), 0]


@pytest.fixture
def liar() -> Liars:
    """A process that takes an order and then does what a script says."""

    @contextlib.asynccontextmanager
    async def begin(script: str, memory_kills: Sequence[int] = (0, 0)) -> AsyncIterator[Life]:
        driver, there = socket.socketpair()
        driver.setblocking(False)
        argv = [sys.executable, "-I", "-S", "-c", LIAR.format(script=script), str(there.fileno())]
        with driver, there:
            process = await asyncio.create_subprocess_exec(*argv, pass_fds=(there.fileno(),))
            there.close()
            async with lived(driver, process.pid, Counting(memory_kills)) as life:
                yield life
            await process.wait()

    return begin


async def ran(life: Life, **options) -> Finished:
    command = Command(argv=("true",), **options)
    return await life.run(command, command.argv, "/", None, None)


REPORT = "driver.sendall(len(r).to_bytes(4, 'big') + r)"


@pytest.mark.parametrize(
    "script",
    [
        "driver.sendall(b'x' * 100_000_000)",
        "r = b'Cmany'; " + REPORT,
        "r = b'?'; " + REPORT,
        "driver.sendall(b'\\0\\0\\0\\0')",
    ],
)
async def test_what_is_no_report_is_a_fault_and_the_end(liar: Liars, script: str) -> None:
    async with liar(script) as life:
        with pytest.raises(RuntimeFault, match="something else than a report"):
            await ran(life)


async def test_its_death_is_a_fault_that_says_so(liar: Liars) -> None:
    async with liar("os.kill(os.getpid(), 9)") as life:
        with pytest.raises(RuntimeFault, match="process 1 of the sandbox died while 'true' ran"):
            await ran(life)
        assert life.over


async def test_a_death_for_want_of_memory_is_how_the_command_ended(liar: Liars) -> None:
    async with liar("os.kill(os.getpid(), 9)", (0, 2)) as life:
        done = await ran(life)
        assert (done.code, done.timed_out) == (-9, False)
        assert b"out of memory: 2 of its processes were killed" in done.stderr


@pytest.mark.parametrize("script", ["time.sleep(100)", "driver.send(b'\\0'); time.sleep(100)"])
async def test_its_silence_ends_with_the_timeout(liar: Liars, script: str) -> None:
    async with liar(script) as life:
        done = await ran(life, timeout_s=0.3)
        assert (done.timed_out, done.code, life.over) == (True, -9, True)


async def test_a_flood_of_output_is_kept_within_its_bound(liar: Liars) -> None:
    script = "os.write(descriptors[1], b'y' * 50_000_000 + b'end'); r = b'C0'; " + REPORT + "; time.sleep(100)"
    async with liar(script) as life:
        done = await ran(life, output_bytes=10, timeout_s=60)
        assert (done.code, done.stdout) == (0, b"yyyyyyyend")


async def test_streams_that_somebody_else_holds_do_not_hold_the_driver(liar: Liars) -> None:
    async with liar("r = b'C0'; " + REPORT + "; time.sleep(100)") as life:
        assert (await ran(life, timeout_s=60)).code == 0


async def test_cancelling_ends_it(liar: Liars) -> None:
    async with liar("time.sleep(100)") as life:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ran(life, timeout_s=60)
        assert life.over


async def test_many_orders_leave_no_descriptor(liar: Liars) -> None:
    script = """
while data:
    for descriptor in descriptors: os.close(descriptor)
    driver.sendall((2).to_bytes(4, "big") + b"C0")
    data, descriptors, _, _ = socket.recv_fds(driver, 1 << 20, 3)
"""
    async with liar(script) as life:
        before = len([*Path("/proc/self/fd").iterdir()])
        for _ in range(20):
            assert (await ran(life, stdin=b"x")).code == 0
        await asyncio.sleep(0)
        assert len([*Path("/proc/self/fd").iterdir()]) <= before + 2


def test_a_word_that_no_program_can_get_is_refused() -> None:
    for argv in ((), ("a\0b",)):
        with pytest.raises(RuntimeFault, match="no program can be started"):
            order(argv, Command(argv=argv), "/")


async def test_a_process_that_ends_before_its_first_word_is_not_waited_for() -> None:
    driver, there = socket.socketpair()
    driver.setblocking(False)
    there.close()
    with driver:
        assert await heard_report(driver) == b""
        with pytest.raises(ConnectionError):
            await greeted(driver)
