"""A sandbox without an image: the host's programs read-only, own namespaces, no network but the proxy."""

import asyncio
import contextlib
import dataclasses
import functools
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from clawexp.component import component
from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed
from clawexp.records import Command, Finished, Needs, Owner, Sandbox, Task
from clawexp.runtime import forwarder
from clawexp.runtime.folder import Folder, FolderSandbox, create
from clawexp.runtime.gate import Gate
from clawexp.runtime.process import supervise
from clawexp.scratch import remove
from clawexp.spec import Positive

WORKSPACE = "/work"
HOME = "/home/agent"
PROXY = "/run/clawexp/proxy.sock"
FORWARDER = "/run/clawexp/forwarder.py"
INTERPRETER = Path(sys.executable).resolve()
PREFIX = Path(sys.base_prefix).resolve()
ISOLATION = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
    *("--proc", "/proc", "--dev", "/dev"),
)
ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "localtime", "nsswitch.conf", "mime.types")
HOSTS = frozenset(("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "run", "sys"))
"""Folders of the root that show the host's, or the kernel's."""
MAX_SIGNAL = 64
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


class BubblewrapSandbox(FolderSandbox):
    """A folder, and programs that start in namespaces of their own around it."""

    home = HOME
    python = str(INTERPRETER)

    def __init__(self, folder: Folder, workspace: str, needs: Needs, owner: Owner, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.workspace = workspace
        self.id = folder.path.name
        self.facts = facts
        self.mounts = (*system(), *ISOLATION, *_mounts(folder, workspace, needs, owner))
        self.prefix: tuple[str, ...] = ()
        if owner.proxy_socket and not needs.dials_socket:
            self.prefix = (str(INTERPRETER), "-I", "-S", FORWARDER, str(owner.proxy_port), PROXY)

    async def run(self, command: Command) -> Finished:
        with Gate() as gate:
            argv = ("bwrap", *self.mounts, *gate.arguments, "--chdir", command.cwd or self.workspace, "--")
            argv = (*argv, *self.prefix, *command.argv)
            try:
                finished = await supervise(argv, command, cwd="/", pass_fds=gate.inherited, admit=gate.open)
            finally:
                await gate.emptied()
            return self._explained(finished, command, gate.read())

    def _explained(self, finished: Finished, command: Command, report: Mapping[str, Any]) -> Finished:
        """Signals as -N, a command that is not there as 127; a failure of bwrap itself raises."""
        if finished.timed_out or finished.code < 0:
            return finished
        if "exit-code" not in report:
            said = finished.stderr[-TAIL:].decode(errors="replace").strip()
            if "execvp" in said:
                return dataclasses.replace(finished, code=127)
            raise RuntimeFault(f"sandbox {self.id}: bwrap could not start {command.argv[0]!r}: {said}")
        code = finished.code
        return dataclasses.replace(finished, code=128 - code) if 128 < code <= 128 + MAX_SIGNAL else finished


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
        arguments += ["--ro-bind", str(owner.proxy_socket), PROXY, "--ro-bind", forwarder.__file__, FORWARDER]
    return (*arguments, "--remount-ro", "/")


def _is_free(inside: str) -> bool:
    """Whether a task can have this path for itself."""
    path = Path(inside)
    return path.is_absolute() and len(path.parts) > 1 and path.parts[1] not in HOSTS


@component
class Bubblewrap:
    """Programs run as uid 1000 in user, process, network, mount, IPC and host name spaces of their own."""

    file_bytes: Positive
    """Larger files are not read back."""

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
        reason = self.refuses(task)
        if reason:
            raise RuntimeFault(reason)
        begun = time.monotonic()
        folder = create(owner, self.file_bytes, task.folders)
        try:
            proxied = owner.proxy_socket is not None
            facts: dict[str, Any] = {
                "runtime": "bubblewrap",
                "isolation": "namespaces",
                "network": "proxy" if proxied else "none",
                "proxy_socket": PROXY if proxied else None,
                "proxy_url": f"http://127.0.0.1:{owner.proxy_port}",
            }
            sandbox = BubblewrapSandbox(folder, task.workspace or WORKSPACE, needs, owner, facts)
            await sandbox.put(task.files)
            facts["start_ms"] = round(1000 * (time.monotonic() - begun), 1)
            yield sandbox
        finally:
            await asyncio.shield(asyncio.to_thread(remove, folder.path))
