"""One container: made stopped, started for each life of its sandbox, and empty when that has ended."""

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podman.domain.containers import Container as Handle

from clawexp.errors import RuntimeFault
from clawexp.runtime.cgroup import Group, Limits
from clawexp.runtime.disk import DiskBound
from clawexp.runtime.life import BEGIN_S, Life, greeted, lived
from clawexp.runtime.podman_service import Service
from clawexp.runtime.process import to_the_end
from clawexp.runtime.sentry import sentry

SOCKET = "driver.sock"
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
    disk: DiskBound

    @contextlib.asynccontextmanager
    async def life(self) -> AsyncIterator[Life]:
        """Start it, while the context lasts; its limits hold. Raises RuntimeFault when it does not start."""
        with _listener(self.door / SOCKET) as listener:
            await self.service.call("start a container", self._start)
            driver = await _caller(listener)
        with driver:
            pid, _, _ = struct.unpack("iii", driver.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            async with self._lived(driver, pid) as life:
                await greeted(driver)
                yield life

    @contextlib.asynccontextmanager
    async def _lived(self, driver: socket.socket, caller: int) -> AsyncIterator[Life]:
        if self.service.oci_runtime != "runsc":
            async with lived(driver, caller, self.group, self.disk.admit) as life:
                yield life
            return
        with sentry(caller) as found:
            admitted = lived(
                driver,
                found.kernel,
                self.group,
                lambda _: found.bind(self.group.admit),
                beside=[found.gofer],
                gone=found.gone,
            )
            async with admitted as life:
                yield life

    def _start(self) -> None:
        # Podman may not yet have noticed how the last life ended; of a new container it knows at once.
        self.handle.wait(condition=["created", "exited"])
        self.handle.start()


@contextlib.asynccontextmanager
async def container(
    service: Service, name: str, door: Path, limits: Limits, disk: DiskBound, options: dict[str, Any]
) -> AsyncIterator[Container]:
    """A container made with podman-py's `options`, while the context lasts; then removed, whatever its state."""
    group = Group(service.groups, name, limits)
    try:
        handle = await service.call("make a container", service.client.containers.create, name=name, **options)
        yield Container(service=service, handle=handle, door=door, group=group, disk=disk)
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
