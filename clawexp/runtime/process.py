"""Supervision of one program: own session, capped output, a timeout that ends the group, always reaped."""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished, Heard

T = TypeVar("T")

STREAMS: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
DRAIN_S = 2.0
"""How long output may still arrive from a pipe that somebody else keeps open after the program's end."""
LOOK_S = 0.005
DEATH_S = 10.0
"""How long a killed process may take to be gone."""


class Tail(asyncio.Protocol):
    """The last `size` bytes of a stream. `heard` is called with all of it as it comes."""

    def __init__(self, size: int, heard: Callable[[bytes], object] | None = None) -> None:
        self.size = size
        self.heard = heard
        self.buffer = bytearray()
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.heard is not None:
            self.heard(data)
        self.buffer += data
        if len(self.buffer) > 2 * self.size:
            del self.buffer[: -self.size]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def kept(self) -> bytes:
        """What there is so far."""
        return bytes(self.buffer[-self.size :]) if self.size else b""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A program that runs, or has ended and is not yet reaped."""

    pid: int
    pidfd: int
    stdout: Tail
    stderr: Tail

    async def ended(self) -> None:
        """Return when the program itself has ended."""
        await readable(self.pidfd)

    def code(self) -> int:
        """Exit status of the ended program; -N for signal N."""
        status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        assert status is not None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. A cancellation that comes meanwhile goes on when it is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def readable(descriptor: int) -> None:
    """Return when a descriptor can be read; for a pidfd that is the end of its process."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


@contextlib.asynccontextmanager
async def start(
    argv: Sequence[str],
    command: Command,
    *,
    cwd: str | None,
    pass_fds: Sequence[int] = (),
    heard: Heard | None = None,
) -> AsyncIterator[Running]:
    """Run `argv` with the command's input and environment. On leaving, its group is killed, it is reaped."""
    child = _spawn(argv, command, cwd, pass_fds)
    pidfd = os.pidfd_open(child.pid)
    pipes: list[asyncio.ReadTransport] = []
    try:
        loop = asyncio.get_running_loop()
        tails = []
        for name, pipe in zip(STREAMS, (child.stdout, child.stderr), strict=True):
            told = functools.partial(heard, name) if heard else None
            made = functools.partial(Tail, command.output_bytes, told)
            transport, tail = await loop.connect_read_pipe(made, pipe)
            pipes.append(transport)
            tails.append(tail)
        yield Running(pid=child.pid, pidfd=pidfd, stdout=tails[0], stderr=tails[1])
    finally:
        try:
            kill_group(child)
            await _seen_gone(child.pid)
        finally:
            os.close(pidfd)
            for transport in pipes:
                transport.close()
            if len(pipes) < 2:
                _close_pipes(child)


def _spawn(argv: Sequence[str], command: Command, cwd: str | None, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    with source(command.stdin) as stdin:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(command.env),
            cwd=cwd,
            start_new_session=True,
            pass_fds=pass_fds,
        )


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a child's group, then reap the child: in this order the id is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


async def _seen_gone(group: int) -> None:
    """Return when nothing of a killed group runs: a signal is on its way when kill() returns. Raises RuntimeFault."""
    deadline = time.monotonic() + DEATH_S
    while living := _members(group):
        if time.monotonic() > deadline:
            raise RuntimeFault(f"processes {living} are still there {DEATH_S:.0f} s after SIGKILL")
        await asyncio.sleep(LOOK_S)


def _members(group: int) -> list[int]:
    """Processes of a group that still run: what nobody has reaped yet is none."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []
    except PermissionError:  # of others, which is told when the time is over
        pass
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _runs_in(entry, group)]


def _runs_in(entry: Path, group: int) -> bool:
    try:
        status = (entry / "stat").read_bytes()  # a program may call itself anything
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, _, of = status.rpartition(b")")[2].split()[:3]
    return int(of) == group and state not in {b"Z", b"X"}


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


@contextlib.contextmanager
def source(data: bytes) -> Iterator[int]:
    """A descriptor from which exactly `data` can be read; nothing has to be pumped."""
    if not data:
        yield subprocess.DEVNULL
        return
    descriptor = os.memfd_create("stdin")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


async def supervise(
    argv: Sequence[str],
    command: Command,
    *,
    cwd: str | None,
    heard: Heard | None = None,
) -> Finished:
    """Run to the end or to the timeout. When this returns, is cancelled or raises, program and group are gone."""
    begun = time.monotonic()
    timed_out = False
    async with start(argv, command, cwd=cwd, heard=heard) as running:
        try:
            async with asyncio.timeout(command.timeout_s):
                await running.ended()
        except TimeoutError:
            timed_out = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        await _gone(running)
        await asyncio.wait({running.stdout.ended, running.stderr.ended}, timeout=DRAIN_S)
        return Finished(
            code=-signal.SIGKILL if timed_out else running.code(),
            stdout=running.stdout.kept(),
            stderr=running.stderr.kept(),
            wall_s=time.monotonic() - begun,
            timed_out=timed_out,
        )


async def _gone(running: Running) -> None:
    try:
        async with asyncio.timeout(DEATH_S):
            await running.ended()
    except TimeoutError as error:
        raise RuntimeFault(f"process {running.pid} is still there {DEATH_S:.0f} s after SIGKILL") from error
