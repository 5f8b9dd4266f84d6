"""A podman service of one run: started enclosed, spoken to by podman-py, ended with the driver however that ends.

Containers are its descendants in a process namespace: with the service, or with the driver, all of them are gone.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from podman import PodmanClient

from clawexp.errors import RuntimeFault
from clawexp.records import Command
from clawexp.runtime.cgroup import divided
from clawexp.runtime.oci import OciRuntime
from clawexp.runtime.podman_home import PodmanHome
from clawexp.runtime.process import Running, start, to_the_end
from clawexp.runtime.reaper import discard
from clawexp.runtime.rootless import enclosed
from clawexp.runtime.seccomp import PROFILES, profile
from clawexp.scratch import scratch_folder

log = logging.getLogger(__name__)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
P = ParamSpec("P")
T = TypeVar("T")

START_S = 120.0
"""How long the service may take to answer for the first time."""
CALL_S = 120.0
"""How long any request may take: a busy podman waits for its own locks."""
STOP_S = 30.0
CONNECTIONS = 32
SAID_BYTES = 20_000
TAIL = 2000
"""Bytes of the service's errors in a message."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A live podman."""

    client: PodmanClient
    socket: Path
    """Where it listens."""
    running: Running
    groups: list[Path]
    """Control groups below which sandboxes may have theirs; empty where there is none to be had."""
    seccomp: Path
    """Profile of the system calls that a sandbox may make."""
    oci_runtime: OciRuntime

    async def call(self, what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make one request, to its end even when cancelled: a container half made would be nobody's.

        Raises RuntimeFault that names `what`.
        """
        try:
            return await to_the_end(asyncio.to_thread(function, *args, **kwargs))
        except OSError as error:  # of requests, and podman-py's own that derive from them
            said = self.running.stderr.kept()[-TAIL:].decode(errors="replace").strip()
            raise RuntimeFault(f"podman could not {what}: {error}" + (f"; it says: {said}" if said else "")) from error


@contextlib.asynccontextmanager
async def service(
    images: Sequence[Path], shown: Sequence[Path], oci_runtime: OciRuntime = "crun"
) -> AsyncIterator[Service]:
    """A podman that runs containers of the images in these stores. It reaches what lies below `shown`, stores too.

    Raises RuntimeFault when it does not start, or when it is not started from the main thread, with whose end the
    kernel would end it.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeFault("podman's service is started from the main thread, which outlives it; this is another")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("podman-"))
        home = PodmanHome(folder=folder, oci_runtime=oci_runtime)
        home.make(images)
        stack.callback(discard, folder)
        groups = stack.enter_context(divided(f"clawexp-{folder.name}", folder / "groups"))
        listener = stack.enter_context(_listening(folder / "socket"))
        command = home.command("system", "service", "--time=0")
        argv = enclosed(command, home.env(), [folder, *shown], listener.fileno())
        plain = Command(argv=argv, output_bytes=SAID_BYTES)
        waiting = await asyncio.open_unix_connection(str(folder / "socket"))
        async with start(argv, plain, cwd="/", pass_fds=(listener.fileno(),)) as running:
            listener.close()  # so that its end is the end of all connections
            client = PodmanClient(base_url=f"unix://{folder / 'socket'}", timeout=CALL_S, max_pool_size=CONNECTIONS)
            stack.callback(client.close)
            alive = Service(
                client=client,
                socket=folder / "socket",
                running=running,
                groups=groups,
                seccomp=_profile(folder),
                oci_runtime=oci_runtime,
            )
            try:
                await _answers(running, waiting)
                yield alive
            finally:
                await to_the_end(_stop(running))


def _profile(folder: Path) -> Path:
    """Write it down. Raises RuntimeFault where podman has none of its own to begin with."""
    own = next((path for path in PROFILES if path.exists()), None)
    if own is None:
        raise RuntimeFault(
            f"podman has no {' or '.join(map(str, PROFILES))}; install the package containers-common, "
            "on Debian golang-github-containers-common"
        )
    written = folder / "seccomp.json"
    written.write_text(json.dumps(profile(json.loads(own.read_text()))))
    return written


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A socket that connections wait at until the service takes them: nobody has to ask whether it is there yet."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(CONNECTIONS)
        yield listener


async def _answers(running: Running, waiting: Connection) -> None:
    """Return when it has answered a connection that was there before it. Raises RuntimeFault when it does not."""
    reader, writer = waiting
    line = b""
    with contextlib.suppress(TimeoutError, ConnectionError), contextlib.closing(writer):
        writer.write(b"GET /_ping HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(START_S):
            line = await reader.readline()
    if not line.startswith(b"HTTP/1."):
        said = running.stderr.kept()[-TAIL:].decode(errors="replace").strip()
        raise RuntimeFault(f"podman's service did not start: {said or 'it said nothing'}")


async def _stop(running: Running) -> None:
    """End it, and wait until the last of its containers is gone. One that does not end is killed with its context."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await running.ended()
    except TimeoutError:
        log.warning("podman's service did not end within %g s of being asked; it is killed", STOP_S)
