"""A bound on what a sandbox writes to its folder. It is measured, since no file system counts for a folder.

One file cannot grow beyond the bound at all, by a limit of its process. All files together are looked at as often as
needed for a program that writes `RATE` bytes a second not to get more than a second's worth too far.
"""

import asyncio
import contextlib
import os
import re
import resource
import signal
import stat
import subprocess
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawexp.records import Finished

RATE = 500 << 20
SOONEST_S = 1.0
LATEST_S = 60.0
MEASURE_S = 60.0
"""For one look; then the next is taken."""


@dataclass(frozen=True, kw_only=True)
class DiskBound:
    """Of one sandbox."""

    folder: Path
    size: int
    """Bytes."""

    def admit(self, pid: int) -> None:
        """Bind a process, and all that it will start, in the size of one file."""
        # Of a process that is gone, or is somebody else's to the kernel, as in a podman of an ordinary user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (self.size, self.size))

    async def keep(self, groups: Sequence[Path], work: Coroutine[Any, Any, Finished]) -> Finished:
        """What becomes of `work`, which is ended when the bound is passed: as one that was killed, and says so.

        `groups`: control groups of the processes that write, which may hold files open that have no name any more.
        """
        begun, bound = time.monotonic(), asyncio.timeout(None)
        watch = asyncio.ensure_future(self._watch(groups, bound))
        try:
            async with bound:
                return await work
        except TimeoutError:
            if not bound.expired():
                raise
            said = f"disk full: more than {self.size >> 20} MB were written in this sandbox\n".encode()
            return Finished(code=-signal.SIGKILL, stdout=b"", stderr=said, wall_s=time.monotonic() - begun)
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    async def _watch(self, groups: Sequence[Path], bound: asyncio.Timeout) -> None:
        used = 0
        while used <= self.size:
            await asyncio.sleep(min(max(SOONEST_S, (self.size - used) / RATE), LATEST_S))
            used = await asyncio.to_thread(self.used, groups)
        bound.reschedule(asyncio.get_running_loop().time())

    def used(self, groups: Sequence[Path]) -> int:
        """Bytes on the disk: of files in the folder, and of those without a name that processes hold open."""
        # By its own descriptor: the path may be long, and `du` itself goes to any depth.
        words = ["du", "--summarize", "--one-file-system", "--block-size=1", str(self.folder)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=MEASURE_S, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return 0
        # What is removed meanwhile is an error to it, and the sum stands there all the same.
        found = re.match(r"\d+", done.stdout)
        return (int(found[0]) if found else 0) + sum(_nameless(groups, self.folder.stat().st_dev).values())


def _nameless(groups: Sequence[Path], device: int) -> dict[int, int]:
    """Bytes by inode."""
    sizes = {}
    for pid in {line for group in groups for line in _lines(group / "cgroup.procs")}:
        with contextlib.suppress(OSError):  # the process may end meanwhile, and so may the next one
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found = Path(entry.path).stat()
                    if found.st_nlink == 0 and found.st_dev == device and stat.S_ISREG(found.st_mode):
                        sizes[found.st_ino] = found.st_blocks * 512
    return sizes


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
