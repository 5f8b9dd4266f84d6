"""One container: made stopped, started for each command with `door.py` as process 1, and empty when that has ended."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podman.domain.containers import Container as Handle

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished
from clawexp.runtime.cgroup import Group, Limits
from clawexp.runtime.ids import ids
from clawexp.runtime.podman_service import Service, to_the_end
from clawexp.runtime.process import DEATH_S, DRAIN_S, Tail, readable, source

SOCKET = "door.sock"
BEGIN_S = 60.0
"""How long process 1 may take to call its driver."""
NOT_FOUND = 404
SERVER_ERROR = 500
REMOVE_AGAIN_S = (1.0, 3.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container, and the folder in which its process 1 finds the driver."""

    service: Service
    handle: Handle
    door: Path
    group: Group
    turn: asyncio.Lock
    """One command at a time."""

    async def run(self, command: Command, argv: Sequence[str], cwd: str) -> Finished:
        """Run `argv`, with all else of `command`, as the only thing in the container.

        When this returns, raises or is cancelled, nothing runs in it any more. Raises RuntimeFault when the container
        does not start.
        """
        begun = time.monotonic()
        order = json.dumps({"argv": [*argv], "env": dict(command.env), "cwd": cwd}).encode() + b"\n"
        async with self.turn, _Streams.of(command) as streams, self._started() as (driver, first):
            report, timed_out, kills = {}, False, self.group.memory_kills()
            try:
                async with asyncio.timeout(command.timeout_s):
                    report = await _carried_out(driver, order, streams)
            except TimeoutError:
                timed_out = True
            await _emptied(first)
            await asyncio.wait({tail.ended for tail in streams.tails}, timeout=DRAIN_S)
            stdout, stderr = (tail.kept() for tail in streams.tails)
        if "error" in report:
            raise RuntimeFault(f"a container could not start {argv[0]!r}: {report['error']}")
        return Finished(
            code=-signal.SIGKILL if timed_out else report.get("code", -signal.SIGKILL),
            stdout=stdout,
            stderr=stderr + _shortage(self.group.memory_kills() - kills),
            wall_s=time.monotonic() - begun,
            timed_out=timed_out,
        )

    @contextlib.asynccontextmanager
    async def _started(self) -> AsyncIterator[tuple[socket.socket, int]]:
        """The connection to process 1, which waits for its order, and a handle on it; its limits hold."""
        with _listener(self.door / SOCKET) as listener:
            await self.service.call("start a container", self._start)
            driver = await _caller(listener)
        with driver:
            pid, _, _ = struct.unpack("iii", driver.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            first = os.pidfd_open(pid)
            try:
                self.group.admit(pid)
                yield driver, first
            finally:
                await to_the_end(_emptied(first))
                os.close(first)

    def _start(self) -> None:
        # Podman may not yet have noticed how the last command ended; of a new container it knows at once.
        self.handle.wait(condition=["created", "exited"])
        self.handle.start()


@contextlib.asynccontextmanager
async def container(
    service: Service, name: str, door: Path, limits: Limits, options: dict[str, Any]
) -> AsyncIterator[Container]:
    """A container made with podman-py's `options`, while the context lasts; then removed, whatever its state."""
    group = Group(service.groups, name, limits)
    try:
        handle = await service.call("make a container", service.client.containers.create, name=name, **options)
        yield Container(service=service, handle=handle, door=door, group=group, turn=asyncio.Lock())
    finally:
        # By its name: when the making of it was cancelled, there is no more to know it by.
        await to_the_end(_remove(service, name, group))


async def _remove(service: Service, name: str, group: Group) -> None:
    def remove() -> None:
        # Not Container.remove: that waits ten seconds for a process 1 that ignores SIGTERM.
        params = {"force": True, "v": True, "timeout": 0}
        answer = service.client.api.delete(f"/containers/{name}", params=params)
        for wait_s in REMOVE_AGAIN_S:  # a busy host lets killed processes linger, and podman gives up on them
            if answer.status_code != SERVER_ERROR:
                break
            time.sleep(wait_s)
            answer = service.client.api.delete(f"/containers/{name}", params=params)
        if answer.status_code != NOT_FOUND:
            answer.raise_for_status()

    try:
        await service.call("remove a container", remove)
    finally:
        await asyncio.to_thread(group.remove)


def _shortage(kills: int) -> bytes:
    """A last word on stderr where the memory was used up."""
    return f"\nout of memory: {kills} of its processes were killed\n".encode() if kills else b""


class _Streams:
    """Input, output and errors of one command: the ends for inside, and what has come out."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.tails: list[Tail] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, command: Command) -> AsyncIterator["_Streams"]:
        streams, agent = cls(), ids().agent
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(streams.close)
            with source(command.stdin) as stdin:
                streams.inside.append(os.open(os.devnull, os.O_RDONLY) if stdin < 0 else os.dup(stdin))
            for _ in range(2):
                out, into = os.pipe()
                streams.inside.append(into)
                if os.geteuid() == 0:  # or a program could not open /dev/stdout
                    os.fchown(into, agent, agent)
                loop = asyncio.get_running_loop()
                transport, tail = await loop.connect_read_pipe(lambda: Tail(command.output_bytes), os.fdopen(out, "rb"))
                stack.callback(transport.close)
                streams.tails.append(tail)
            yield streams

    def close(self) -> None:
        """Close the ends for inside."""
        while self.inside:
            os.close(self.inside.pop())


@contextlib.contextmanager
def _listener(path: Path) -> Iterator[socket.socket]:
    """The socket that process 1 calls, there only until it has: what runs later finds none."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # a path of any length
            path.chmod(0o666)
            listener.listen(1)
            yield listener
    finally:
        path.unlink(missing_ok=True)
        os.close(folder)


async def _caller(listener: socket.socket) -> socket.socket:
    try:
        async with asyncio.timeout(BEGIN_S):
            driver, _ = await asyncio.get_running_loop().sock_accept(listener)
    except TimeoutError as error:
        raise RuntimeFault(f"a container's first process did not come up within {BEGIN_S:.0f} s") from error
    driver.setblocking(False)
    return driver


async def _carried_out(driver: socket.socket, order: bytes, streams: _Streams) -> dict[str, Any]:
    """Send an order and wait for the report; an empty one where process 1 died before it could tell."""
    loop = asyncio.get_running_loop()
    answer = b""
    sent = socket.send_fds(driver, [order], streams.inside)
    streams.close()
    with contextlib.suppress(ConnectionError):
        if sent < len(order):
            await loop.sock_sendall(driver, order[sent:])
        while chunk := await loop.sock_recv(driver, 65536):
            answer += chunk
    return json.loads(answer) if answer.endswith(b"\n") else {}


async def _emptied(first: int) -> None:
    """End process 1, and with it everything in its process namespace; return when all of it is gone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(first, signal.SIGKILL)
    try:
        async with asyncio.timeout(DEATH_S):
            await readable(first)
    except TimeoutError as error:
        raise RuntimeFault(f"a container still runs {DEATH_S:.0f} s after SIGKILL") from error
