"""One life of a sandbox: a process namespace from the start of its process 1 to its end, and the commands in between.

Process 1 is `inside.c`. What it says is read within bounds and believed only as far as the sandbox's own business goes:
whether it is gone is asked of the kernel, by a handle on the process.
"""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished, Heard
from clawexp.runtime.cgroup import Group
from clawexp.runtime.process import DEATH_S, DRAIN_S, STREAMS, Tail, readable, source, to_the_end

BEGIN_S = 60.0
"""How long process 1 may take to say that it is there."""
SIZE = struct.Struct("!I")
CREDENTIALS = struct.Struct("iii")
ANSWER_S = 5.0
"""How long process 1 may take to say what is left."""
SCHEDULED = (15, 16, 37, 38)
"""Priority, niceness, real-time priority and policy: fields 18, 19, 40 and 41 of /proc/PID/stat, behind the name."""
REPORT_BYTES = 1024
"""No report is longer."""
LOST = b""
"""What stands for the report of a process 1 that is gone."""

Gone = Callable[[], object]


class Life:
    """Made by `lived` alone."""

    def __init__(
        self, driver: socket.socket, pid: int, handles: Sequence[int], group: Group, gone: Gone | None
    ) -> None:
        """`handles`: on process 1 and on all that are beside it. `gone`: returns when all else of it is."""
        self.pid = pid
        """Of process 1, on the host."""
        self.over = False
        self._driver = driver
        self._handles = handles
        self._gone = gone
        self._group = group
        self._conditions = _conditions(pid)

    async def run(
        self, command: Command, argv: Sequence[str], cwd: str, heard: Heard | None, agent: int | None
    ) -> Finished:
        """Run `argv`, with all else of `command`, to its end or its timeout. Then nothing of it runs any more.

        A timeout and a cancellation end the life. `agent`: the host's id of the user inside, where it is not the
        driver's own. Raises RuntimeFault where the command could not be started, or process 1 died.
        """
        begun, met = time.monotonic(), self._group.shortages()
        report, timed_out = LOST, False
        async with Streams.of(command, heard, agent) as streams:
            try:
                async with asyncio.timeout(command.timeout_s):
                    report = await self._carried_out(order(argv, command, cwd), streams)
            except TimeoutError:
                timed_out = True
            finally:
                if report == LOST:
                    await to_the_end(self.end())
            await asyncio.wait({tail.ended for tail in streams.tails}, timeout=DRAIN_S)
            stdout, stderr = (tail.kept() for tail in streams.tails)
        shortage = self._group.told(met)
        if report == LOST and not timed_out and not shortage:
            raise RuntimeFault(f"process 1 of the sandbox died while {argv[0]!r} ran in it")
        return Finished(
            code=-signal.SIGKILL if report == LOST else _code(report, argv[0]),
            stdout=stdout,
            stderr=stderr + shortage,
            wall_s=time.monotonic() - begun,
            timed_out=timed_out,
        )

    async def _carried_out(self, order: bytes, streams: "Streams") -> bytes:
        """Send an order and wait for the report; LOST where process 1 died before it could tell."""
        loop = asyncio.get_running_loop()
        try:
            sent = socket.send_fds(self._driver, [order], streams.inside)
            streams.close()
            if sent < len(order):
                await loop.sock_sendall(self._driver, order[sent:])
            return await heard_report(self._driver)
        except ConnectionError:
            return LOST

    async def is_as_begun(self) -> bool:
        """Whether nothing but files is left of what ran in it, so that whatever runs next is in no new danger.

        The kernel says that there is no other process and that process 1 has the limits and the priority that it had;
        process 1 says that there is no shared memory, and nobody inside can change what it does. When it does not tell,
        the answer is no, and so it is where others are beside it: what they remember, the kernel does not say.
        """
        if self.over or len(self._handles) > 1 or _conditions(self.pid) != self._conditions:
            return False
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_sendall(self._driver, SIZE.pack(0))
                return await heard_report(self._driver) == b"T0"
        except (TimeoutError, ConnectionError, RuntimeFault):
            await to_the_end(self.end())
            return False

    async def end(self) -> None:
        """Kill process 1, and with it everything in its process namespace; return when all of it is gone.

        Raises RuntimeFault where that does not come about.
        """
        self.over = True
        _kill(self._handles)
        try:
            async with asyncio.timeout(DEATH_S):
                for handle in self._handles:
                    await readable(handle)
                if self._gone is not None:
                    await asyncio.to_thread(self._gone)
        except TimeoutError as error:
            raise RuntimeFault(f"a sandbox still runs {DEATH_S:.0f} s after SIGKILL") from error


def _conditions(pid: int) -> tuple[str, ...]:
    """What programs inside could change for those after them: other processes, limits, priority, processors."""
    try:
        process = Path("/proc", str(pid))
        children = [path.read_text() for path in process.glob("task/*/children")]
        allowed = [line for line in (process / "status").read_text().splitlines() if line.startswith("Cpus_allowed:")]
        stat = (process / "stat").read_text().rpartition(")")[2].split()
        return ("".join(children), (process / "limits").read_text(), *allowed, *(stat[field] for field in SCHEDULED))
    except OSError:
        return ("gone",)


@contextlib.asynccontextmanager
async def lived(
    driver: socket.socket,
    pid: int,
    group: Group,
    *admits: Callable[[int], object],
    beside: Sequence[int] = (),
    gone: Gone | None = None,
) -> AsyncIterator[Life]:
    """A life, from its process 1, which waits for orders, until the context ends.

    The group and all that admit it are given its id first. `beside`: processes that serve it from outside of its
    namespace, and end with it; `gone`: returns when what may go on for a moment without these does not. Raises
    RuntimeFault where one is gone by then.
    """
    handles: list[int] = []
    try:
        for process in (pid, *beside):
            handles.append(_handle(process))
        for admit in (group.admit, *admits):
            await asyncio.to_thread(_admitted, admit, pid)  # the kernel takes its time to move a process
        life = Life(driver, pid, handles, group, gone)
        try:
            yield life
        finally:
            await to_the_end(life.end())
    finally:
        _kill(handles)
        for handle in handles:
            os.close(handle)


def _handle(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise RuntimeFault("process 1 of a sandbox died before it took a command") from error


def _kill(handles: Sequence[int]) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


def _admitted(admit: Callable[[int], object], pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the first command will find that it is gone
        admit(pid)


async def greeted(driver: socket.socket) -> int:
    """Wait for the first word of process 1; its id on the host, 0 where nobody says it. `SO_PASSCRED` has to be set.

    Raises RuntimeFault where it does not come, ConnectionError where it never will.
    """
    try:
        async with asyncio.timeout(BEGIN_S):
            await readable(driver.fileno())
            _, control, _, _ = driver.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size), socket.MSG_PEEK)
            if await heard_report(driver) != b"S":
                raise ConnectionError("process 1 is gone")
    except TimeoutError as error:
        raise RuntimeFault(f"a sandbox's first process did not come up within {BEGIN_S:.0f} s") from error
    said = (data for _, kind, data in control if kind == socket.SCM_CREDENTIALS)
    return next((CREDENTIALS.unpack(data)[0] for data in said), 0)


async def heard_report(driver: socket.socket) -> bytes:
    """The next report; LOST at the end. Raises RuntimeFault where it is none."""
    header = await _exactly(driver, SIZE.size)
    if header == LOST:
        return LOST
    (size,) = SIZE.unpack(header)
    if not 0 < size <= REPORT_BYTES:
        raise RuntimeFault(f"process 1 of the sandbox said something else than a report: {header!r}")
    return await _exactly(driver, size)


async def _exactly(driver: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(driver, size - len(data))
        if not part:
            return LOST
        data += part
    return data


def order(argv: Sequence[str], command: Command, cwd: str) -> bytes:
    """As `inside.c` reads it. Raises RuntimeFault where a word cannot be passed to a program."""
    env = (f"{name}={value}" for name, value in command.env.items())
    words = [os.fsencode(word) for word in (cwd, str(len(argv)), *argv, *env)]
    if not argv or any(b"\0" in word for word in words):
        raise RuntimeFault(f"no program can be started by {argv!r:.200}: there is no word, or a zero byte in one")
    text = b"".join(word + b"\0" for word in words)
    return SIZE.pack(len(text)) + text


def _code(report: bytes, name: str) -> int:
    kind, text = report[:1], report[1:].decode(errors="replace")
    if kind == b"E":
        raise RuntimeFault(f"a sandbox could not start {name!r}: {text}")
    try:
        if kind != b"C":
            raise ValueError(kind)
        return int(text)
    except ValueError as error:
        raise RuntimeFault(f"process 1 of the sandbox said something else than a report: {report!r:.200}") from error


class Streams:
    """Input, output and errors of one command: the ends for inside, and what has come out."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.tails: list[Tail] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, command: Command, heard: Heard | None, agent: int | None) -> AsyncIterator["Streams"]:
        streams = cls()
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(streams.close)
            with source(command.stdin) as stdin:
                streams.inside.append(os.open(os.devnull, os.O_RDONLY) if stdin < 0 else os.dup(stdin))
            for name in STREAMS:
                out, into = os.pipe()
                streams.inside.append(into)
                if agent is not None:  # or a program could not open /dev/stdout
                    os.fchown(into, agent, agent)
                    os.fchmod(into, 0o622)
                told = functools.partial(heard, name) if heard else None
                made = functools.partial(Tail, command.output_bytes, told)
                transport, tail = await loop.connect_read_pipe(made, os.fdopen(out, "rb"))
                stack.callback(transport.close)
                streams.tails.append(tail)
            yield streams

    def close(self) -> None:
        """Close the ends for inside."""
        while self.inside:
            os.close(self.inside.pop())
