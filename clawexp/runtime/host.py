"""One host of many: the program on it that holds sandboxes, and the ways to it, which are unix sockets.

A host is reached with ssh, which authenticates, encrypts and carries the sockets: nothing listens on a network. A name
that begins with `local/` is this machine, and needs no ssh.
"""

import asyncio
import contextlib
import json
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clawexp.errors import RuntimeFault
from clawexp.records import Needs, Owner, Task
from clawexp.runtime.far_sandbox import FarSandbox, far_sandbox
from clawexp.runtime.process import to_the_end
from clawexp.runtime.wire import Message, raise_told

LOCAL = "local/"
MODULE = "clawexp.runtime.host_program"
STOP_S = 60.0
"""How long a host may take to remove what it holds."""
FORWARD_S = 30.0
TAIL = 2000
"""Bytes of a program's errors in a message."""
SSH = (
    *("-T", "-o", "BatchMode=yes", "-o", "ControlMaster=yes", "-o", "ControlPersist=no"),
    *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3", "-o", "StreamLocalBindUnlink=yes"),
)
"""A host that says nothing for half a minute is gone."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How hosts are reached and what they are asked to do."""

    ssh: Sequence[str]
    """The program, and options of the user's own."""
    python: str
    """On the host, with clawexp installed."""
    settings: Mapping[str, Any]
    """For the program; see `clawexp.runtime.host_program`."""
    folder: Path
    """For sockets; its path is short."""
    start_s: float


@dataclass(kw_only=True)
class Host:
    """A live one."""

    name: str
    way: Way
    process: Process
    socket: Path
    """Of its program, here."""
    proxies: str
    """The folder on the host for sockets that lead to the proxy."""
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    """To be set when it is to be started anew."""
    faults: int = 0
    """Sandboxes that it failed to make, one after another."""
    _forwarded: dict[Path, Path] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[FarSandbox]:
        """A sandbox there. Raises RuntimeFault."""
        try:
            if owner.proxy_socket is not None:
                owner = replace(owner, proxy_socket=await self._there(owner.proxy_socket))
            reader, writer = await asyncio.open_unix_connection(self.socket)
        except OSError as error:
            raise RuntimeFault(f"host {self.name} is not reached any more: {error}") from error
        async with far_sandbox(self.name, reader, writer, task, needs, owner) as sandbox:
            yield sandbox

    async def _there(self, proxy: Path) -> Path:
        """A socket on the host that leads to this one here."""
        if self.name.startswith(LOCAL):
            return proxy
        async with self._turn:
            if proxy not in self._forwarded:
                there = Path(self.proxies, str(len(self._forwarded)))
                await forward(self.way, self.name, "-R", there, proxy)
                self._forwarded[proxy] = there
            return self._forwarded[proxy]


def control(way: Way, name: str) -> list[str]:
    """The option that names the connection to a host."""
    return ["-S", str(way.folder / f"{name}.ssh")]


async def forward(way: Way, name: str, how: str, at: Path, to: Path) -> None:
    """Let a socket lead to another over the live connection. Raises RuntimeFault."""
    argv = [*way.ssh, *control(way, name), "-O", "forward", how, f"{at}:{to}", name]
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(FORWARD_S):
            _, said = await process.communicate()
    except TimeoutError as error:
        process.kill()
        raise RuntimeFault(f"host {name}: ssh did not forward {at} within {FORWARD_S:g} s") from error
    if process.returncode:
        raise RuntimeFault(f"host {name}: ssh did not forward {at}: {said.decode(errors='replace').strip()}")


def command(way: Way, name: str) -> list[str]:
    """What starts the program."""
    if name.startswith(LOCAL):
        return [sys.executable, "-m", MODULE]
    return [*way.ssh, *SSH, *control(way, name), name, f"exec {shlex.join([way.python, '-m', MODULE])}"]


@contextlib.asynccontextmanager
async def host(way: Way, name: str) -> AsyncIterator[Host]:
    """Start the program on a host, while the context lasts. Raises RuntimeFault where it does not come to serve."""
    log = way.folder / f"{name.replace('/', '-')}.log"
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *command(way, name),
            stdin=PIPE,
            stdout=PIPE,
            stderr=said,
            start_new_session=True,  # a terminal's Ctrl-C is for the driver, which ends this in its own time
        )
    try:
        ready = await _ready(process, way, name, log)
        socket = Path(ready["socket"])
        if not name.startswith(LOCAL):
            await forward(way, name, "-L", socket := way.folder / f"{name}.socket", Path(ready["socket"]))
        yield Host(name=name, way=way, process=process, socket=socket, proxies=ready["proxies"])
    finally:
        await to_the_end(_end(process))


async def _ready(process: Process, way: Way, name: str, log: Path) -> Mapping[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    line = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(way.start_s):
            process.stdin.write(json.dumps(way.settings).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
    if not line:
        tail = log.read_bytes()[-TAIL:].decode(errors="replace").strip()
        raise RuntimeFault(f"host {name} does not serve sandboxes: {tail or f'no answer within {way.start_s:g} s'}")
    ready = json.loads(line)
    raise_told(name, Message(ready))
    return ready


async def _end(process: Process) -> None:
    """Let the program remove what it holds; kill it where it does not come to an end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
