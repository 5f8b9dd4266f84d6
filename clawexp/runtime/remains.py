"""What is left of a run when it is over. It should be nothing, and whatever it is, it is counted and told."""

import contextlib
import dataclasses
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clawexp.runtime.cgroup import own_groups
from clawexp.scratch import scratch_root

log = logging.getLogger(__name__)

SEEN = ("cmdline", "environ", "mountinfo")
"""What tells of a process that it belongs to a sandbox: the folder's path stands there."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """Of this process's runs."""

    containers: int
    processes: int
    mounts: int
    cgroups: int
    sockets: int
    folders: int

    def __str__(self) -> str:
        """`0 containers, 0 processes, 0 mounts, 0 cgroups, 0 sockets, 0 folders`"""
        return ", ".join(f"{number} {kind}" for kind, number in dataclasses.asdict(self).items())


@contextlib.contextmanager
def telling_remains(sockets: Path | None = None) -> Iterator[None]:
    """Around a whole run: one line on stderr when it is over, however; a warning where something is left.

    `sockets`: the model boundary's, where they lie in a folder that stays.
    """
    try:
        yield
    finally:
        left = remains(sockets)
        if any(dataclasses.asdict(left).values()):
            log.warning("left of this run: %s; when this process has ended: python -m clawexp reap", left)
        else:
            sys.stderr.write(f"left of this run: {left}\n")


def remains(sockets: Path | None = None) -> Remains:
    """Count now, when all contexts of the run have ended."""
    folders = [*scratch_root().glob(f"*-{os.getpid()}-*"), *([sockets] if sockets and sockets.exists() else [])]
    names = [
        f"{re.escape(f'{scratch_root()}/')}[a-z]+-{os.getpid()}-",
        *([re.escape(f"{sockets}/")] if sockets else []),
    ]
    mine = re.compile("|".join(names).encode())
    bound = {line.rpartition(b" ")[2] for line in Path("/proc/net/unix").read_bytes().splitlines() if mine.search(line)}
    bound |= {os.fsencode(path) for folder in folders for path in folder.rglob("*") if _is_socket(path)}
    groups = (group for parent in own_groups().values() for group in parent.glob(f"clawexp-*-{os.getpid()}-*"))
    return Remains(
        containers=sum(len([*folder.glob("state/storage/overlay-containers/*/")]) for folder in folders),
        processes=len([*_processes(mine)]),
        mounts=len(mine.findall(Path("/proc/self/mountinfo").read_bytes())),
        cgroups=len([*groups]),
        sockets=len(bound),
        folders=len(folders),
    )


def _is_socket(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(path.lstat().st_mode)
    return False


def _processes(mine: re.Pattern[bytes]) -> Iterator[int]:
    """Ids of other processes that name one of the folders."""
    here = Path("/proc/self/ns/mnt").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end between the listing and the look
            # In this mount namespace everybody has all mounts.
            files = SEEN if (entry / "ns/mnt").readlink() != here else SEEN[:2]
            if int(entry.name) != os.getpid() and any(mine.search((entry / file).read_bytes()) for file in files):
                yield int(entry.name)
