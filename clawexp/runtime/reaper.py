"""Removal of what a dead driver left, and of what has expired: processes, control groups, folders."""

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from clawexp.runtime.cgroup import RECORD, recorded, release_recorded
from clawexp.runtime.label import labelled
from clawexp.runtime.rootless import call
from clawexp.scratch import alive, entries, remove

DISCARD_S = 120.0
REMOVE_S = 120.0


def sweep(root: Path) -> int:
    """Remove every folder under `root` whose driver is dead, with what runs in it. Returns how many."""
    dead = [path for path in entries(root) if path.is_dir() and not path.is_symlink() and not alive(path)]
    end_processes(dead)
    for path in dead:
        for record in _records(path):
            release_recorded(record)
        discard(path)
    return len(dead)


def sweep_expired(root: Path) -> int:
    """End and remove the sandboxes whose time is over, though their driver lives. Returns how many.

    A driver that still waits for one learns that its command was killed.
    """
    expired = {path: label for path, label in labelled(root) if label.expired}
    end_processes([*expired])
    for path, label in expired.items():
        if label.container:
            remove_container(label.podman, label.container)
        discard(path)
    return len(expired)


def remove_container(podman: str, name: str) -> None:
    """Have it removed by a podman that listens on this socket. Where that fails its driver, which lives, will see."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as service:
        service.settimeout(REMOVE_S)
        service.connect(podman)
        path = f"/v4.0.0/libpod/containers/{name}?force=true&v=true&timeout=0"
        service.sendall(f"DELETE {path} HTTP/1.0\r\n\r\n".encode())
        while service.recv(4096):  # the end of its answer
            pass


def end_processes(folders: Sequence[Path]) -> None:
    """Kill what runs in these sandboxes, or in those of these runs, as far as this user may."""
    if not folders:
        return
    # The first process of a sandbox before those that it has started: it would tell of their end as its command's.
    for pid in sorted({*_in_groups(folders), *_naming(folders)} - {os.getpid()}):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _in_groups(folders: Sequence[Path]) -> Iterator[int]:
    groups = (group for folder in folders for record in _records(folder) for group in recorded(record))
    for group in groups:
        for inner in (group, *entries(group)):
            with contextlib.suppress(OSError):  # of a group that has ended, or of what is none
                yield from map(int, (inner / "cgroup.procs").read_text().split())


def _records(folder: Path) -> list[Path]:
    return [folder / RECORD, *(inner / RECORD for inner in entries(folder))]


def _naming(folders: Sequence[Path]) -> Iterator[int]:
    """Processes that have one of the folders in their environment, or in mounts that are not everybody's.

    A command line may name it too, and be of somebody who looks.
    """
    names = [re.escape(os.fsencode(_on_its_file_system(folder.absolute()))) for folder in folders]
    mark = re.compile(rb"(" + rb"|".join(names) + rb")(/|\0|\n| |$)")
    here = Path("/proc/self/ns/mnt").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end between the listing and the look
            own = (entry / "ns/mnt").readlink() != here
            if mark.search(_environment(entry)) or (own and mark.search((entry / "mountinfo").read_bytes())):
                yield int(entry.name)


def _on_its_file_system(folder: Path) -> str:
    """The path below the mount that it is in, which is how mounts tell of it. `/clawexp-0/run-1`"""
    mounted = next(parent for parent in folder.parents if parent.is_mount())
    return f"/{folder.relative_to(mounted)}"


def _environment(process: Path) -> bytes:
    """Without the folder that somebody stands in, or stood."""
    entries = (process / "environ").read_bytes().split(b"\0")
    return b"\0".join(entry for entry in entries if not entry.startswith((b"PWD=", b"OLDPWD=")))


def discard(folder: Path) -> None:
    """Remove a folder whose `state` may hold files of a podman, which are not this user's."""
    state = folder / "state"
    if os.geteuid() != 0 and state.is_dir():
        call(["rm", "-rf", "--one-file-system", str(state)], {"PATH": os.defpath}, [], DISCARD_S)
    remove(folder)
