"""A sandbox without an image: the host's programs read-only, own namespaces, no network but the proxy."""

import asyncio
import contextlib
import functools
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clawexp.component import component
from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed
from clawexp.records import Command, Needs, Owner, Sandbox, Task
from clawexp.runtime.cgroup import RECORD, Group, Limits, group_of, release_recorded, unlimited
from clawexp.runtime.compiled import program
from clawexp.runtime.disk import DiskBound
from clawexp.runtime.folder import Folder, create
from clawexp.runtime.label import new_label, write_label
from clawexp.runtime.life import Life, greeted, lived
from clawexp.runtime.living import LivingSandbox
from clawexp.runtime.process import DRAIN_S, source, start, to_the_end
from clawexp.runtime.seccomp import FILTER
from clawexp.scratch import remove
from clawexp.spec import Positive

WORKSPACE = "/work"
HOME = "/home/agent"
PROXY = "/run/clawexp/proxy.sock"
FIRST = "/run/clawexp/inside"
INTERPRETER = Path(sys.executable).resolve()
PREFIX = Path(sys.base_prefix).resolve()
ISOLATION = (
    *("--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
    *("--proc", "/proc", "--dev", "/dev"),
)
ETC = (
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates",
    "alternatives",
    "ld.so.cache",
    "localtime",
    "nsswitch.conf",
    "mime.types",
)
HOSTS = frozenset(("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "run", "sys"))
"""Folders of the root that show the host's, or the kernel's."""
MASKED = ("acpi", "kcore", "keys", "latency_stats", "scsi", "sched_debug", "timer_list", "timer_stats")
"""Of /proc: what tells of the machine. To the kernel, programs of a driver that is root are its owner."""
TAIL = 2000
"""Bytes of stderr in a message."""


@functools.cache
def system() -> tuple[str, ...]:
    """Arguments that show the host's programs and the little of /etc that they need."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    for name in ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    if not PREFIX.is_relative_to("/usr"):
        arguments += ["--ro-bind", str(PREFIX), str(PREFIX)]
    return tuple(arguments)


@functools.cache
def masks() -> tuple[str, ...]:
    """Arguments that hide parts of /proc and make the rest read-only: /proc/sys is the machine's.

    Hidden are those that are named, and whatever is not for everybody to read.
    """
    arguments = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() or not (path.name in MASKED or _is_closed(path)):
            continue
        if path.is_dir():
            arguments += ["--tmpfs", str(path), "--remount-ro", str(path)]
        else:
            arguments += ["--ro-bind", "/dev/null", str(path)]
    return (*arguments, "--remount-ro", "/proc")


def _is_closed(path: Path) -> bool:
    with contextlib.suppress(OSError):  # of a process that has ended
        return not path.is_symlink() and not path.stat().st_mode & stat.S_IROTH
    return False


@functools.cache
def unavailable() -> str | None:
    """Why bubblewrap does not work here; None where it does. Tried once for each process."""
    program = shutil.which("bwrap")
    if program is None:
        return "there is no bwrap in PATH; install the package bubblewrap"
    argv = (program, *system(), *ISOLATION, str(INTERPRETER), "-I", "-S", "-c", "")
    try:
        done = subprocess.run(argv, capture_output=True, timeout=30, env={}, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap did not run: {error}"
    return None if done.returncode == 0 else done.stderr.decode(errors="replace").strip()


@dataclass(frozen=True)
class _Bubble:
    """How a sandbox's lives begin: bwrap's arguments, then process 1 and its own."""

    mounts: tuple[str, ...]
    first: tuple[str, ...]
    forwarded: tuple[str, ...]

    group: Group
    disk: DiskBound

    @contextlib.asynccontextmanager
    async def life(self) -> AsyncIterator[Life]:
        """Start bwrap, while the context lasts. Raises RuntimeFault where it does not start."""
        driver, inside = socket.socketpair()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(driver)
            with inside, source(FILTER or b"") as filters:
                driver.setblocking(False)
                driver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                argv, passed = self._argv(inside.fileno(), filters)
                plain = Command(argv=argv, output_bytes=TAIL)
                running = await stack.enter_async_context(start(argv, plain, cwd="/", pass_fds=passed))
            try:
                pid = await greeted(driver)
            except ConnectionError as error:
                await asyncio.wait({running.stderr.ended}, timeout=DRAIN_S)
                said = running.stderr.kept().decode(errors="replace").strip()
                raise RuntimeFault(f"bwrap could not start a sandbox: {said}") from error
            yield await stack.enter_async_context(lived(driver, pid, self.group, self.disk.admit))

    def _argv(self, inside: int, filters: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """bwrap's arguments, and the descriptors that it is given."""
        refused = ("--seccomp", str(filters)) if FILTER else ()
        program = shutil.which("bwrap") or "bwrap"
        argv = (program, *self.mounts, *refused, "--", *self.first, str(inside), *self.forwarded)
        return argv, (inside, filters) if FILTER else (inside,)


def _mounts(folder: Folder, workspace: str, needs: Needs, owner: Owner) -> tuple[str, ...]:
    """Arguments that show the sandbox's own folders, what the harness asks for and the proxy."""
    own = {HOME: folder.home, workspace: folder.workspace}
    own |= {inside: folder.further(inside) for inside in folder.folders}
    shown = {"/tmp": folder.tmp, **own}
    arguments = [word for inside, outside in shown.items() for word in ("--bind", str(outside), inside)]
    for stub in (folder.path / "etc").iterdir():
        arguments += ["--ro-bind", str(stub), f"/etc/{stub.name}"]
    for outside, inside in needs.mounts.items():
        if any(Path(inside).is_relative_to(place) for place in own):
            raise RuntimeFault(
                f"{outside} cannot be shown in a sandbox: {', '.join(own)} are the task's own there. "
                "Keep it elsewhere; the cache of harnesses moves with XDG_CACHE_HOME"
            )
        arguments += ["--ro-bind", outside, inside]
    if owner.proxy_socket:
        arguments += ["--ro-bind", str(owner.proxy_socket), PROXY]
    arguments += ["--ro-bind", str(program().path), FIRST]
    return (*system(), *ISOLATION, *masks(), *arguments, "--remount-ro", "/")


class BubblewrapSandbox(LivingSandbox):
    """A folder, and lives in namespaces of their own around it."""

    home = HOME
    python = str(INTERPRETER)

    def __init__(
        self,
        folder: Folder,
        task: Task,
        needs: Needs,
        owner: Owner,
        group: Group,
        disk: DiskBound,
        facts: Mapping[str, Any],
    ) -> None:
        workspace = task.workspace or WORKSPACE
        forwarded = owner.proxy_socket and not needs.dials_socket
        bubble = _Bubble(
            mounts=_mounts(folder, workspace, needs, owner),
            first=program().argv(FIRST, self.python),
            forwarded=(str(owner.proxy_port), PROXY) if forwarded else (),
            group=group,
            disk=disk,
        )
        super().__init__(folder, task.files, workspace, bubble.life, disk, group)
        self.facts = facts


def _is_free(inside: str) -> bool:
    """Whether a task can have this path for itself."""
    path = Path(inside)
    return path.is_absolute() and len(path.parts) > 1 and path.parts[1] not in HOSTS


@component
class Bubblewrap:
    """Programs run as uid 1000 in user, process, network, mount, IPC and host name spaces of their own."""

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
    require_limits: bool
    """Refuse to run where not all of these limits can be set."""

    def refuses(self, place: Placed) -> str | None:
        """There are no images here, only the host's programs."""
        if place.image is not None and place.image.required:
            return (
                f"task {place.id} needs an image of its own, and runtime=bubblewrap builds none; "
                "use runtime=podman, or leave the task out"
            )
        taken = [path for path in (place.workspace, *place.folders) if path and not _is_free(path)]
        if taken:
            return f"task {place.id} wants {', '.join(taken)} for itself, where runtime=bubblewrap shows the host's"
        return None

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        reason = unavailable()
        if reason:
            raise RuntimeFault(f"bubblewrap does not work here: {reason}. Use runtime=local for the built-in harness")
        reason = self.refuses(task) or (self.require_limits and unlimited())
        if reason:
            raise RuntimeFault(reason)
        begun = time.monotonic()
        folder = create(owner, self.file_bytes, task.folders)
        limits = Limits(memory_mb=self.memory_mb, cpus=self.cpus, pids=self.pids)
        disk = DiskBound(folder=folder.path, size=self.disk_mb << 20)
        try:
            write_label(folder.path, new_label(owner.run_id, owner.rollout_id, "bubblewrap"))
            group = group_of(f"clawexp-{owner.root.name}-{os.getpid()}-{folder.path.name}", folder.path, limits)
            facts = _facts(owner, group, disk)
            sandbox = BubblewrapSandbox(folder, task, needs, owner, group, disk, facts)
            await sandbox.begin()
            facts["start_ms"] = round(1000 * (time.monotonic() - begun), 1)
            try:
                yield sandbox
            finally:
                await to_the_end(sandbox.end())
        finally:
            await asyncio.shield(asyncio.to_thread(_remove, folder.path))


def _remove(folder: Path) -> None:
    release_recorded(folder / RECORD)
    remove(folder)


def _facts(owner: Owner, group: Group, disk: DiskBound) -> dict[str, Any]:
    proxied = owner.proxy_socket is not None
    return {
        "runtime": "bubblewrap",
        "isolation": "namespaces",
        "seccomp": FILTER is not None,
        "limits": {**group.in_force, "disk_mb": disk.size >> 20},
        "limits_missing": group.missing,
        "network": "proxy" if proxied else "none",
        "proxy_socket": PROXY if proxied else None,
        "proxy_url": f"http://127.0.0.1:{owner.proxy_port}",
    }
