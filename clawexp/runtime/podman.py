"""Rootless Podman: an image of Debian packages, a container for each sandbox, no network but the proxy."""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from clawexp.component import component
from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed, Runtime
from clawexp.records import Command, Finished, Heard, Needs, Owner, Sandbox, Task
from clawexp.runtime import image
from clawexp.runtime.cgroup import Limits, unlimited
from clawexp.runtime.container import Container, container
from clawexp.runtime.disk import DiskBound
from clawexp.runtime.folder import Folder, create
from clawexp.runtime.furnish import HOME, PROXY, first, furnish, is_free, make_mount_points, mount_points, mounts
from clawexp.runtime.ids import AGENT, ids
from clawexp.runtime.image_build import Building
from clawexp.runtime.label import Label, new_label, write_label
from clawexp.runtime.living import LivingSandbox
from clawexp.runtime.oci import KINDS, OciRuntime, refused
from clawexp.runtime.podman_service import Service, service
from clawexp.runtime.pool import Pool, pool
from clawexp.runtime.process import to_the_end
from clawexp.runtime.rootless import unavailable
from clawexp.runtime.task_image import PYTHON_VERSION, WORKSPACE, TaskImage, base_image
from clawexp.runtime.task_images import TaskImages
from clawexp.scratch import remove
from clawexp.spec import Positive, Seconds

log = logging.getLogger(__name__)

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


class PodmanSandbox(LivingSandbox):
    """A folder of the host, and a container that shows it."""

    home = HOME

    def __init__(
        self, folder: Folder, label: Label, made: TaskImage, inside: Container, facts: Mapping[str, Any]
    ) -> None:
        """`label`: of its container, which cannot be changed; its folder's own tells whose it is now."""
        agent = ids().agent if os.geteuid() == 0 else None
        super().__init__(folder, {}, made.workspace, inside.life, inside.disk, inside.group, agent)
        self.python = made.python
        self.facts = facts
        self._label = label
        self._image = made
        self.mount_points: Mapping[Path, Path] = {}
        """See `clawexp.runtime.furnish.mount_points`."""

    @property
    def outlasts_stop(self) -> bool:
        """To empty the folders removes mount points, and what is mounted there is gone for the life that goes on."""
        return self._image.is_read_only and not self.mount_points

    def lend(self, rollout_id: str) -> None:
        """Write down whose it is, until when."""
        own = self._label
        lent = new_label(own.run, rollout_id, own.runtime)
        write_label(self.folder.path, replace(lent, podman=own.podman, container=own.container))

    def keep(self) -> None:
        """Write down that it waits for somebody."""
        write_label(self.folder.path, replace(self._label, expires=None))

    async def snapshot(self) -> str:
        _refuse(self._unkept())
        return await super().snapshot()

    async def reset(self, to: str | None = None) -> None:
        _refuse(self._unkept())
        await super().reset(to)

    def _unkept(self) -> str | None:
        if self._image.is_read_only:
            return None
        return f"sandbox {self.id} is of a task's own image, whose folders may have changed and are not kept or reset"

    async def begin(self) -> None:
        make_mount_points(self.mount_points)
        await asyncio.to_thread(self._image.unpack, self.folder.workspace)
        await super().begin()

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        return await super().run(replace(command, env=self._image.programs_env(command.env)), heard)


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
    disk_mb: Positive
    """Written to its folders: a program that passes it is ended."""

    warm: Annotated[int, Field(ge=0)]
    """Sandboxes that may be kept ready for the next rollouts; 0: each is made for its rollout and then removed."""
    creators: Positive
    """Sandboxes that are made, made as new or removed at once, where some are kept ready."""
    require_limits: bool
    """Refuse to run where not all of these limits can be set."""
    oci_runtime: OciRuntime
    """What makes its containers: `crun` and `runc` of namespaces, `runsc` with gVisor's kernel."""
    base: str | None
    """What FROM stands for in the Dockerfiles of tasks; None: for what it says where its registry answers, else for the
    project's base image. `package:base` is that one; anything else is what `podman pull` takes."""
    build_network: Literal["none", "host"]
    """Of a Dockerfile's lines."""
    build_s: Seconds
    """For one image."""
    builds: Positive
    """At once."""

    def misses(self) -> str | None:
        """What its containers are made with."""
        return refused(self.oci_runtime)

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
        _refuse(self.misses() or unavailable())
        _refuse(self.require_limits and unlimited())
        line = self.prepared()
        _refuse(line and f"the image for sandboxes is not there; build it with: {line}")
        images = self.images(places).found()
        stores = {store for made in images.values() for store in made.stores}
        async with service(
            [image.store(), *sorted(stores - {image.store()})], [image.cache().parent, *folders], self.oci_runtime
        ) as alive:
            opened = OpenPodman(self, alive, images)
            async with opened.keeping_warm():
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
        self._pool: Pool[_Kind, PodmanSandbox] | None = None
        self._live: set[str] = set()

    @contextlib.asynccontextmanager
    async def keeping_warm(self) -> AsyncIterator[None]:
        """With a pool while the context lasts, where the options want one."""
        if self._options.warm == 0:
            yield
            return
        most, creators = self._options.warm, self._options.creators
        async with pool(self._warm, _renewed, most=most, creators=creators) as self._pool:
            yield
            log.info("sandboxes: %s", ", ".join(f"{count} {what}" for what, count in self._pool.counts.items()))

    async def labels(self) -> list[dict[str, str]]:
        """Of every container that there is, in whatever state."""
        found = await self._service.call("list its containers", self._service.client.containers.list, all=True)
        return [each.attrs["Labels"] or {} for each in found]

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        _refuse(self._options.refuses(task))
        begun = time.monotonic()
        kind = _Kind.of(task, self._image(task), needs, owner)
        if self._pool is None:
            async with self._made(kind, owner.rollout_id) as sandbox:
                yield await self._begun(sandbox, task, owner, begun)
            return
        if owner.rollout_id in self._live:
            raise RuntimeFault(f"{owner.rollout_id}: a live sandbox has this name already; rollout ids must be unique")
        self._live.add(owner.rollout_id)
        try:
            async with self._pool.leased(kind) as sandbox:
                yield await self._begun(sandbox, task, owner, begun)
        finally:
            self._live.discard(owner.rollout_id)

    async def _begun(self, sandbox: PodmanSandbox, task: Task, owner: Owner, begun: float) -> PodmanSandbox:
        sandbox.lend(owner.rollout_id)
        await sandbox.begin_with(owner.rollout_id, task.files)
        sandbox.facts = {**sandbox.facts, "start_ms": round(1000 * (time.monotonic() - begun), 1)}
        return sandbox

    @contextlib.asynccontextmanager
    async def _warm(self, kind: "_Kind") -> AsyncIterator[PodmanSandbox]:
        async with self._made(kind, f"warm-{next(self._numbers)}") as sandbox:
            await sandbox.ready()
            sandbox.keep()
            yield sandbox

    @contextlib.asynccontextmanager
    async def _made(self, kind: "_Kind", name: str) -> AsyncIterator[PodmanSandbox]:
        owner, needs, made = replace(kind.owner, rollout_id=name), kind.needs(), kind.image
        folder = create(owner, self._options.file_bytes, kind.folders)
        called = f"sandbox-{next(self._numbers)}"
        label = new_label(owner.run_id, owner.rollout_id, "podman")
        label = replace(label, podman=str(self._service.socket), container=called)
        try:
            write_label(folder.path, label)
            await asyncio.to_thread(furnish, folder)
            make_mount_points(points := mount_points(folder, needs))
            options = {**FIXED, **_of_image(made), "labels": label.labels()}
            options["seccomp_profile_path"] = str(self._service.seccomp)
            # Not as the command: an image may have an entry point of its own.
            options["entrypoint"] = first(made.python, needs, owner)
            options["mounts"] = mounts(folder, made.workspace, needs, owner)
            disk = DiskBound(folder=folder.path, size=self._options.disk_mb << 20)
            if self._options.oci_runtime == "runsc":  # its kernel knows files; on the host it is one process
                options["ulimits"] = [{"Name": "fsize", "Soft": disk.size, "Hard": disk.size}]
            async with container(self._service, called, folder.path / "door", self._limits, disk, options) as inside:
                facts = _facts(owner, inside, made)
                _refuse(self._options.require_limits and _unenforced(facts))
                sandbox = PodmanSandbox(folder, label, made, inside, facts)
                sandbox.mount_points = points
                try:
                    yield sandbox
                finally:
                    await to_the_end(sandbox.end())
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


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """All that a sandbox is made of but its task: those that agree in it can take each other's place."""

    store: Path
    workspace: str
    image: TaskImage = field(compare=False)
    folders: tuple[str, ...]
    mounts: tuple[tuple[str, str], ...]
    dials_socket: bool
    owner: Owner
    """Of no rollout."""

    @classmethod
    def of(cls, task: Task, made: TaskImage, needs: Needs, owner: Owner) -> "_Kind":
        mounts = (*needs.mounts.items(),)
        return cls(
            store=made.store,
            workspace=made.workspace,
            image=made,
            folders=task.folders,
            mounts=mounts,
            dials_socket=needs.dials_socket,
            owner=replace(owner, rollout_id=""),
        )

    def needs(self) -> Needs:
        return Needs(mounts=dict(self.mounts), dials_socket=self.dials_socket)


def _refuse(reason: str | Literal[False] | None) -> None:
    if reason:
        raise RuntimeFault(reason)


async def _renewed(sandbox: PodmanSandbox) -> bool:
    if not sandbox.outlasts_stop:
        return False
    await sandbox.renew()
    await sandbox.ready()
    sandbox.keep()
    return True


def _of_image(made: TaskImage) -> dict[str, Any]:
    """A container's options that depend on its image."""
    return {
        "image": made.name,
        # What a task's Dockerfile left writable for its user is the task's own, and goes with the container.
        "read_only": made.is_read_only,
    }


def _unenforced(facts: Mapping[str, Any]) -> str | None:
    missing = facts["limits_missing"]
    return f"no limit on {', '.join(missing)} is in force, and runtime.require_limits asks for it" if missing else None


def _facts(owner: Owner, inside: Container, made: TaskImage) -> dict[str, Any]:
    proxied = owner.proxy_socket is not None
    return {
        "runtime": "podman",
        "isolation": KINDS[inside.service.oci_runtime].isolation,
        "oci_runtime": inside.service.oci_runtime,
        "image": made.store.name,
        "base": made.base,
        "limits": {**inside.group.in_force, "disk_mb": inside.disk.size >> 20},
        "limits_missing": inside.group.missing,
        "network": "proxy" if proxied else "none",
        "proxy_socket": PROXY if proxied else None,
        "proxy_url": f"http://127.0.0.1:{owner.proxy_port}",
    }
