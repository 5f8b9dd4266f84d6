"""Limits on memory, CPU and processes of a container, by control groups of version 1 that the driver makes itself.

They lie below the driver's own groups, so that limits on the driver go on to hold for all it starts. Version 2 forbids
groups below one that has processes in it, so there a driver cannot do this.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clawexp.scratch import entries

CONTROLLERS = ("memory", "cpu", "pids")
CPU_PERIOD_US = 100_000
SHORTAGES = (
    ("memory.oom_control", "oom_kill", "out of memory: {} of its processes were killed"),
    ("pids.events", "max", "out of processes: {} times none could be started"),
)
"""File and line where the kernel counts how often a limit was met, and what is said then."""
RECORD = "groups"
"""File of a sandbox's folder that names its groups."""
EMPTY_S = 5.0
"""How long a group may take to notice that its last process is gone."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one sandbox may use."""

    memory_mb: int
    cpus: float
    pids: int

    @staticmethod
    def names() -> tuple[str, ...]:
        return ("memory_mb", "cpus", "pids")

    def files(self) -> dict[str, dict[str, int]]:
        """Controller -> file -> value."""
        return {
            "memory": {"memory.limit_in_bytes": self.memory_mb << 20},
            "cpu": {"cpu.cfs_period_us": CPU_PERIOD_US, "cpu.cfs_quota_us": int(self.cpus * CPU_PERIOD_US)},
            "pids": {"pids.max": self.pids},
        }


def own_groups(process: str = "/proc/self") -> dict[str, Path]:
    """Controller -> the folder of this process's own group; without controllers that it may not divide."""
    paths = {}
    for line in Path(process, "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    found = {}
    for line in Path(process, "mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, place = left.split()[3:5]
        kind, _, options = right.split(maxsplit=2)
        for controller in set(options.split(",")) & set(CONTROLLERS) & set(paths) if kind == "cgroup" else ():
            inside = os.path.relpath(paths[controller], root)
            folder = Path(place) if inside.startswith("..") else Path(place, inside)
            if os.access(folder, os.W_OK):
                found[controller] = folder.resolve()
    return found


def unlimited(process: str = "/proc/self") -> str | None:
    """Which limits cannot be set here, and what to do; None where all can."""
    missing = sorted(set(CONTROLLERS) - own_groups(process).keys())
    if not missing:
        return None
    return (
        f"no limit on {', '.join(missing)} can be set here: that takes control groups of version 1 that this process "
        "may divide. Run as root, have them delegated, or accept that with runtime.require_limits=false"
    )


def divide(name: str) -> list[Path]:
    """Make a group of this name below the driver's own, for each controller where that is possible."""
    made = []
    for folder in own_groups().values():
        with contextlib.suppress(OSError):
            (folder / name).mkdir()
            made.append(folder / name)
    return made


def release(groups: list[Path]) -> None:
    """Remove groups with those below them. Groups that are not there are no error, and those in use stay."""
    for group in groups:
        for inner in (*(each for each in entries(group) if each.is_dir()), group):
            _remove(inner)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + EMPTY_S
    while time.monotonic() < deadline:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a process that has ended is counted for a moment longer
            time.sleep(0.01)
        else:
            return


class Group:
    """The groups of one sandbox."""

    def __init__(self, parents: list[Path], name: str, limits: Limits) -> None:
        self.folders = [parent / name for parent in parents]
        self.in_force: dict[str, float] = {}
        """What holds, read back from the kernel: `{"memory_mb": 4096, "cpus": 2.0, "pids": 512}`."""
        files = limits.files()
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
            for controller in CONTROLLERS:
                if all((folder / file).exists() for file in files[controller]):
                    self._set(folder, controller, files[controller])
        self.missing = [name for name in limits.names() if name not in self.in_force]
        """What was asked for and does not hold."""

    def _set(self, folder: Path, controller: str, files: dict[str, int]) -> None:
        for file, value in files.items():
            (folder / file).write_text(str(value))
        *_, last = files
        value = int((folder / last).read_text())
        shown = {"memory": ("memory_mb", value >> 20), "cpu": ("cpus", value / CPU_PERIOD_US), "pids": ("pids", value)}
        self.in_force |= [shown[controller]]

    def admit(self, pid: int) -> None:
        """Bind a process, and all that it will start, to the limits."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def shortages(self) -> list[int]:
        """How often so far each limit of SHORTAGES was met."""
        return [self._count(file, word) for file, word, _ in SHORTAGES]

    def _count(self, file: str, word: str) -> int:
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError):
                for line in (folder / file).read_text().splitlines():
                    if line.startswith(f"{word} "):
                        return int(line.split()[1])
        return 0

    def told(self, before: Sequence[int]) -> bytes:
        """A last word on a command's errors where it met a limit; `before`: the counts when it began."""
        new = [now - then for now, then in zip(self.shortages(), before, strict=True)]
        said = [sentence.format(count) for count, (*_, sentence) in zip(new, SHORTAGES, strict=True) if count]
        return "".join(f"\n{line}\n" for line in said).encode()

    def remove(self) -> None:
        release(self.folders)


@contextlib.contextmanager
def divided(name: str, record: Path) -> Iterator[list[Path]]:
    """Groups of this name while the context lasts, written down in `record` for whoever sweeps after a kill."""
    record.write_text("".join(f"{folder / name}\n" for folder in own_groups().values()))
    groups = divide(name)
    try:
        yield groups
    finally:
        release(groups)


def group_of(name: str, folder: Path, limits: Limits) -> Group:
    """The groups of one sandbox, directly below the driver's own, written down in its folder. Remove them afterwards.

    Where none can be made, no limit is in force.
    """
    parents = list(own_groups().values())
    (folder / RECORD).write_text("".join(f"{parent / name}\n" for parent in parents))
    return Group(parents, name, limits)


def recorded(record: Path) -> list[Path]:
    """The groups that a driver wrote down; none where there is no such file."""
    with contextlib.suppress(OSError):
        return [Path(line) for line in record.read_text().splitlines()]
    return []


def release_recorded(record: Path) -> None:
    """Remove the groups that a killed driver wrote down."""
    release(recorded(record))
