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
from clawexp.scratch import entries, scratch_root

log = logging.getLogger(__name__)

SEEN = ("cmdline", "environ", "mountinfo")
"""What tells of a process that it belongs to a sandbox: the folder's path stands there."""
CONTAINERS = "state/storage/overlay-containers"
"""Of a podman's folder."""


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
def telling_remains() -> Iterator[None]:
    """Around a whole run: one line on stderr when it is over, however; a warning where something is left."""
    try:
        yield
    finally:
        left = remains()
        if any(dataclasses.asdict(left).values()):
            log.warning("left of this run: %s; when this process has ended: python -m clawexp reap", left)
        else:
            sys.stderr.write(f"left of this run: {left}\n")


def remains() -> Remains:
    """Count now, when all contexts of the run have ended."""
    folders = [path for path in entries(scratch_root()) if f"-{os.getpid()}-" in path.name]
    mine = re.compile(os.fsencode(f"{re.escape(f'{scratch_root()}/')}[a-z]+-{os.getpid()}-"))
    bound = {line.rpartition(b" ")[2] for line in Path("/proc/net/unix").read_bytes().splitlines() if mine.search(line)}
    bound |= {os.fsencode(path) for folder in folders for path in _sockets(folder)}
    groups = (group.name for parent in own_groups().values() for group in entries(parent))
    return Remains(
        containers=sum(path.is_dir() for folder in folders for path in entries(folder / CONTAINERS)),
        processes=len([*_processes(mine)]),
        mounts=len(mine.findall(Path("/proc/self/mountinfo").read_bytes())),
        cgroups=sum(name.startswith("clawexp-") and f"-{os.getpid()}-" in name for name in groups),
        sockets=len(bound),
        folders=len(folders),
    )


def _sockets(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with contextlib.suppress(OSError):  # it may be gone by now
                if stat.S_ISSOCK(path.lstat().st_mode):
                    yield path


def _processes(mine: re.Pattern[bytes]) -> Iterator[int]:
    """Ids of other processes that name one of the folders."""
    here = Path("/proc/self/ns/mnt").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end between the listing and the look
            # In this mount namespace everybody has all mounts.
            files = SEEN if (entry / "ns/mnt").readlink() != here else SEEN[:2]
            if int(entry.name) != os.getpid() and any(mine.search((entry / file).read_bytes()) for file in files):
                yield int(entry.name)
