"""Rootless Podman: an image of Debian packages, a container for each sandbox, no network but the proxy."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from clawexp.component import component
from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed, Runtime
from clawexp.records import Command, Finished, Needs, Owner, Sandbox, Task
from clawexp.runtime import image
from clawexp.runtime.cgroup import Limits, unlimited
from clawexp.runtime.container import Container, container
from clawexp.runtime.folder import Folder, FolderSandbox, create
from clawexp.runtime.furnish import DOOR, HOME, PROXY, furnish, is_free, mounts, prefix
from clawexp.runtime.ids import AGENT
from clawexp.runtime.image_build import Building
from clawexp.runtime.podman_service import Service, service
from clawexp.runtime.rootless import unavailable
from clawexp.runtime.task_image import PYTHON_VERSION, WORKSPACE, TaskImage, base_image
from clawexp.runtime.task_images import TaskImages
from clawexp.scratch import remove, start_time
from clawexp.spec import Positive, Seconds

log = logging.getLogger(__name__)

EXPIRES_S = 86_400
"""From then on whoever goes by the labels may remove a container."""
MAX_SIGNAL = 64
FIXED: dict[str, Any] = {
    "hostname": "sandbox",
    "network_mode": "none",
    "user": f"{AGENT}:{AGENT}",
    "cap_drop": ["all"],
    "no_new_privileges": True,  # as one of `security_opt` it would be ignored
    "read_write_tmpfs": False,
    "use_config_proxy": False,
    "systemd": "false",
    "log_config": {"Type": "none"},
}
"""What all containers have in common."""


class PodmanSandbox(FolderSandbox):
    """A folder of the host, and a container that shows it."""

    home = HOME

    def __init__(
        self, folder: Folder, made: TaskImage, prefix: Sequence[str], inside: Container, facts: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.workspace = made.workspace
        self.python = made.python
        self.id = folder.path.name
        self.facts = facts
        self._image = made
        self._prefix = prefix
        self._inside = inside

    async def run(self, command: Command) -> Finished:
        command = dataclasses.replace(command, env=self._image.programs_env(command.env))
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

    require_limits: bool
    """Refuse to run where not all of these limits can be set."""
    base: str | None
    """What FROM stands for in the Dockerfiles of tasks; None: for what it says where its registry answers, else for the
    project's base image. `package:base` is that one; anything else is what `podman pull` takes."""
    build_network: Literal["none", "host"]
    """Of a Dockerfile's lines."""
    build_s: Seconds
    """For one image."""
    builds: Positive
    """At once."""

    def prepared(self) -> str | None:
        """None when its image is there; otherwise the line that builds it."""
        return None if image.store().is_dir() else "python -m clawexp prepare runtime=podman"

    def prepare(self) -> None:
        """Build the base image, with progress on stderr. Raises RuntimeFault."""
        _refuse(unavailable())
        image.build()

    def images(self, places: Sequence[Placed]) -> TaskImages:
        """Those that these tasks bring."""
        how = Building(base=self.base, network=self.build_network, limit_s=self.build_s, at_once=self.builds)
        return TaskImages(how=how, places=tuple(places))

    def refuses(self, place: Placed) -> str | None:
        """The image's own folders stay as they are."""
        taken = [path for path in (place.workspace, *place.folders) if path and not is_free(path)]
        if taken:
            return (
                f"task {place.id} wants {', '.join(taken)} for itself, which is the image's; "
                "use other folders in the task, or leave it out"
            )
        return None

    def lacks(self, needs: Needs, place: Placed | None) -> str | None:
        """Packages for a version of Python that the image does not have, or is not known to have."""
        if needs.python is None:
            return None
        if place is not None and place.image is not None and place.image.required:
            return (
                f"its packages are for Python {needs.python}, and task {place.id} brings an image of its own, whose "
                "Python may be another; use another harness, or leave the task out"
            )
        if needs.python != PYTHON_VERSION:
            return (
                f"its packages are for Python {needs.python}, and the base image has Python {PYTHON_VERSION}; "
                f"use runtime=bubblewrap, or run clawexp with Python {PYTHON_VERSION}"
            )
        return None

    @contextlib.asynccontextmanager
    async def open(self, folders: Sequence[Path], places: Sequence[Placed]) -> AsyncIterator[Runtime]:
        """One podman for many sandboxes of these tasks. `folders`: where they and the proxy's socket will lie.

        Raises RuntimeFault where rootless containers do not work or an image is missing, or a limit that is required.
        """
        _refuse(unavailable())
        _refuse(self.require_limits and unlimited())
        line = self.prepared()
        _refuse(line and f"the image for sandboxes is not there; build it with: {line}")
        images = self.images(places).found()
        stores = {store for made in images.values() for store in made.stores}
        async with service(
            [image.store(), *sorted(stores - {image.store()})], [image.cache().parent, *folders]
        ) as alive:
            opened = OpenPodman(self, alive, images)
            yield opened
            log.info("%d containers left", len(await opened.labels()))

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        """A sandbox with a podman for itself alone."""
        owner.root.mkdir(parents=True, exist_ok=True)
        folders = [owner.root, *([owner.proxy_socket.parent] if owner.proxy_socket else [])]
        async with self.open(folders, [task]) as opened, opened.sandbox(task, needs, owner) as sandbox:
            yield sandbox


class OpenPodman:
    """A live podman, and the options for its sandboxes."""

    def __init__(self, options: Podman, alive: Service, images: Mapping[Path, TaskImage]) -> None:
        self._options = options
        self._service = alive
        self._images = images
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
        made = self._image(task)
        folder = create(owner, self._options.file_bytes, task.folders)
        try:
            await asyncio.to_thread(furnish, folder, made)
            options = {**FIXED, **_of_image(made), "labels": _labels(owner)}
            options["mounts"] = mounts(folder, made.workspace, needs, owner)
            name = f"sandbox-{next(self._numbers)}"
            async with container(self._service, name, folder.path / "door", self._limits, options) as inside:
                facts = _facts(owner, inside, made)
                _refuse(self._options.require_limits and _unenforced(facts))
                sandbox = PodmanSandbox(folder, made, prefix(made.python, needs, owner), inside, facts)
                await sandbox.put(task.files)
                facts["start_ms"] = round(1000 * (time.monotonic() - begun), 1)
                yield sandbox
        finally:
            await asyncio.shield(asyncio.to_thread(remove, folder.path))

    def _image(self, task: Task) -> TaskImage:
        if task.image is None or not task.image.required:
            return base_image(task.workspace or WORKSPACE)
        made = self._images.get(task.image.context)
        if made is None:
            raise RuntimeFault(f"task {task.id} needs an image of its own, and this podman was opened without it")
        if not is_free(made.workspace):
            raise RuntimeFault(f"task {task.id}: the WORKDIR of its image, {made.workspace}, is the image's own folder")
        return made


def _refuse(reason: str | Literal[False] | None) -> None:
    if reason:
        raise RuntimeFault(reason)


def _of_image(made: TaskImage) -> dict[str, Any]:
    """A container's options that depend on its image."""
    return {
        "image": made.name,
        # Not as the command: an image may have an entry point of its own.
        "entrypoint": [made.python, "-I", "-S", f"{DOOR}/door.py", f"{DOOR}/door.sock"],
        # What a task's Dockerfile left writable for its user is the task's own, and goes with the container.
        "read_only": made.name == image.NAME,
    }


def _unenforced(facts: Mapping[str, Any]) -> str | None:
    missing = facts["limits_missing"]
    return f"no limit on {', '.join(missing)} is in force, and runtime.require_limits asks for it" if missing else None


def _labels(owner: Owner) -> dict[str, str]:
    """For whoever looks at the containers: whose they are, and how long."""
    pid = os.getpid()
    return {
        "clawexp.run": owner.run_id,
        "clawexp.rollout": owner.rollout_id,
        "clawexp.owner": f"{pid}:{start_time(pid)}",
        "clawexp.expires": str(int(time.time()) + EXPIRES_S),
    }


def _facts(owner: Owner, inside: Container, made: TaskImage) -> dict[str, Any]:
    proxied = owner.proxy_socket is not None
    return {
        "runtime": "podman",
        "isolation": "container",
        "image": made.store.name,
        "base": made.base,
        "limits": inside.group.in_force,
        "limits_missing": inside.group.missing,
        "network": "proxy" if proxied else "none",
        "proxy_socket": PROXY if proxied else None,
        "proxy_url": f"http://127.0.0.1:{owner.proxy_port}",
    }
