"""Rootless Podman: an image of Debian packages, a container for each sandbox, no network but the proxy."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clawexp.component import component
from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished, Needs, Owner, Sandbox, Task
from clawexp.runtime import door, forwarder, image
from clawexp.runtime.cgroup import Limits
from clawexp.runtime.container import Container, container
from clawexp.runtime.folder import Folder, FolderSandbox, create
from clawexp.runtime.ids import AGENT, ids
from clawexp.runtime.podman_service import Service, service
from clawexp.runtime.reaper import remove, start_time
from clawexp.runtime.rootless import unavailable
from clawexp.spec import Placed, Positive, Runtime

log = logging.getLogger(__name__)

WORKSPACE = "/work"
HOME = "/home/agent"
PYTHON = "/usr/bin/python3"
DOOR = "/run/clawexp"
PROXY = f"{DOOR}/proxy.sock"
PROGRAMS = (door.__file__, forwarder.__file__)
SYSTEM = frozenset(("usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "dev", "run", "sys"))
"""Folders of the root that are the image's, or the kernel's."""
EXPIRES_S = 86_400
"""From then on whoever goes by the labels may remove a container."""
MAX_SIGNAL = 64
FIXED: dict[str, Any] = {
    "image": image.NAME,
    "command": [PYTHON, "-I", "-S", f"{DOOR}/door.py", f"{DOOR}/door.sock"],
    "hostname": "sandbox",
    "network_mode": "none",
    "user": f"{AGENT}:{AGENT}",
    "cap_drop": ["all"],
    "no_new_privileges": True,  # as one of `security_opt` it would be ignored
    "read_only": True,
    "read_write_tmpfs": False,
    "use_config_proxy": False,
    "systemd": "false",
    "log_config": {"Type": "none"},
}
"""What all containers have in common."""


class PodmanSandbox(FolderSandbox):
    """A folder of the host, and a container that shows it."""

    home = HOME
    python = PYTHON

    def __init__(
        self, folder: Folder, workspace: str, prefix: Sequence[str], inside: Container, facts: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.workspace = workspace
        self.id = folder.path.name
        self.facts = facts
        self._prefix = prefix
        self._inside = inside

    async def run(self, command: Command) -> Finished:
        done = await self._inside.run(command, (*self._prefix, *command.argv), command.cwd or self.workspace)
        # The forwarder tells a signal as a shell does.
        told = self._prefix and 128 < done.code <= 128 + MAX_SIGNAL
        return dataclasses.replace(done, code=128 - done.code) if told else done


@component
class Podman:
    """Programs run as uid 1000 in a container of a podman of our own, which is nobody on the host."""

    file_bytes: Positive
    """Larger files are not read back."""
    memory_mb: Positive
    """Of all programs of a sandbox together."""
    cpus: Annotated[float, Field(gt=0)]
    """Of all programs of a sandbox together."""
    pids: Positive
    """Processes and threads at once."""

    def prepared(self) -> str | None:
        """None when its image is there; otherwise the line that builds it."""
        return None if image.store().is_dir() else "python -m clawexp prepare runtime=podman"

    def prepare(self) -> None:
        """Build the base image, with progress on stderr. Raises RuntimeFault."""
        _refuse(unavailable())
        image.build()

    def refuses(self, place: Placed) -> str | None:
        """The image's own folders stay as they are."""
        if place.image is not None and place.image.required:
            return f"task {place.id} needs an image of its own, and runtime=podman has one for all"
        taken = [path for path in (place.workspace, *place.folders) if path and not _is_free(path)]
        return f"task {place.id} wants {', '.join(taken)} for itself, which is the image's" if taken else None

    @contextlib.asynccontextmanager
    async def open(self, folders: Sequence[Path]) -> AsyncIterator[Runtime]:
        """One podman for many sandboxes. `folders`: where they and the proxy's socket will lie.

        Raises RuntimeFault where rootless containers do not work or the image is missing.
        """
        _refuse(unavailable())
        line = self.prepared()
        _refuse(line and f"the image for sandboxes is not there; build it with: {line}")
        async with service([image.store()], [image.cache().parent, *folders]) as alive:
            opened = OpenPodman(self, alive)
            yield opened
            log.info("%d containers left", len(await opened.labels()))

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        """A sandbox with a podman for itself alone."""
        owner.root.mkdir(parents=True, exist_ok=True)
        folders = [owner.root, *([owner.proxy_socket.parent] if owner.proxy_socket else [])]
        async with self.open(folders) as opened, opened.sandbox(task, needs, owner) as sandbox:
            yield sandbox


class OpenPodman:
    """A live podman, and the options for its sandboxes."""

    def __init__(self, options: Podman, alive: Service) -> None:
        self._options = options
        self._service = alive
        self._limits = Limits(memory_mb=options.memory_mb, cpus=options.cpus, pids=options.pids)
        self._numbers = itertools.count()

    async def labels(self) -> list[dict[str, str]]:
        """Of every container that there is, in whatever state."""
        found = await self._service.call("list its containers", self._service.client.containers.list, all=True)
        return [each.attrs["Labels"] or {} for each in found]

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        _refuse(self._options.refuses(task))
        begun = time.monotonic()
        folder = create(owner, self._options.file_bytes, task.folders)
        try:
            _furnish(folder)
            workspace = task.workspace or WORKSPACE
            options = {**FIXED, "labels": _labels(owner), "mounts": _mounts(folder, workspace, needs, owner)}
            name = f"sandbox-{next(self._numbers)}"
            async with container(self._service, name, folder.path / "door", self._limits, options) as inside:
                facts = _facts(owner, inside)
                sandbox = PodmanSandbox(folder, workspace, _prefix(needs, owner), inside, facts)
                await sandbox.put(task.files)
                facts["start_ms"] = round(1000 * (time.monotonic() - begun), 1)
                yield sandbox
        finally:
            await asyncio.shield(asyncio.to_thread(remove, folder.path))


def _refuse(reason: str | None) -> None:
    if reason:
        raise RuntimeFault(reason)


def _is_free(inside: str) -> bool:
    """Whether a task can have this path for itself."""
    path = Path(inside)
    return path.is_absolute() and len(path.parts) > 1 and path.parts[1] not in SYSTEM


def _furnish(folder: Folder) -> None:
    """Lay down what process 1 needs, and give the rest to the agent."""
    folder.path.chmod(0o711)
    place = folder.path / "door"
    place.mkdir(mode=0o711)
    for program in PROGRAMS:
        shutil.copyfile(program, place / Path(program).name)
    (place / Path(PROXY).name).touch()  # where the proxy's socket is mounted
    agent = ids().agent
    for path in (folder.workspace, folder.home, folder.tmp, *map(folder.further, folder.folders)):
        os.chown(path, agent, agent if os.geteuid() == 0 else -1)


def _labels(owner: Owner) -> dict[str, str]:
    """For whoever looks at the containers: whose they are, and how long."""
    pid = os.getpid()
    return {
        "clawexp.run": owner.run_id,
        "clawexp.rollout": owner.rollout_id,
        "clawexp.owner": f"{pid}:{start_time(pid)}",
        "clawexp.expires": str(int(time.time()) + EXPIRES_S),
    }


def _mounts(folder: Folder, workspace: str, needs: Needs, owner: Owner) -> list[dict[str, Any]]:
    """The sandbox's own folders, what the harness asks for, the door and the proxy."""
    own = {HOME: folder.home, workspace: folder.workspace}
    own |= {inside: folder.further(inside) for inside in folder.folders}
    shown = {"/tmp": folder.tmp, **own}
    mounts: list[dict[str, Any]] = [_mount(outside, inside, read_only=False) for inside, outside in shown.items()]
    for outside, inside in needs.mounts.items():
        if any(Path(inside).is_relative_to(place) for place in own):
            raise RuntimeFault(
                f"{outside} cannot be shown in a sandbox: {', '.join(own)} are the task's own there. "
                "Keep it elsewhere; the cache of harnesses moves with XDG_CACHE_HOME"
            )
        mounts.append(_mount(Path(outside), inside, read_only=True))
    mounts.append(_mount(folder.path / "door", DOOR, read_only=True))
    if owner.proxy_socket:
        mounts.append(_mount(owner.proxy_socket, PROXY, read_only=True))
    return mounts


def _mount(outside: Path, inside: str, *, read_only: bool) -> dict[str, Any]:
    return {"type": "bind", "source": str(outside), "target": inside, "read_only": read_only}


def _prefix(needs: Needs, owner: Owner) -> tuple[str, ...]:
    """What stands before a command: the forwarder, where there is a proxy that is dialled by its port."""
    if owner.proxy_socket is None or needs.dials_socket:
        return ()
    return (PYTHON, "-I", "-S", f"{DOOR}/forwarder.py", str(owner.proxy_port), PROXY)


def _facts(owner: Owner, inside: Container) -> dict[str, Any]:
    proxied = owner.proxy_socket is not None
    return {
        "runtime": "podman",
        "isolation": "container",
        "image": image.store().name,
        "limits": inside.group.in_force,
        "network": "proxy" if proxied else "none",
        "proxy_socket": PROXY if proxied else None,
        "proxy_url": f"http://127.0.0.1:{owner.proxy_port}",
    }
