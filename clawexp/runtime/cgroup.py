"""Limits on memory, CPU and processes of a container, by control groups of version 1 that the driver makes itself.

They lie below the driver's own groups, so that limits on the driver go on to hold for all it starts. Version 2 forbids
groups below one that has processes in it, so there a driver cannot do this.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "cpu", "pids")
CPU_PERIOD_US = 100_000
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
        for inner in (*group.glob("*/"), group):
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
        self._folders = [parent / name for parent in parents]
        self.in_force: dict[str, float] = {}
        """What holds, read back from the kernel: `{"memory_mb": 4096, "cpus": 2.0, "pids": 512}`."""
        files = limits.files()
        for folder in self._folders:
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
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def memory_kills(self) -> int:
        """How many processes were ended because the memory was used up."""
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):
                for line in (folder / "memory.oom_control").read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def remove(self) -> None:
        release(self._folders)


@contextlib.contextmanager
def divided(name: str, record: Path) -> Iterator[list[Path]]:
    """Groups of this name while the context lasts, written down in `record` for whoever sweeps after a kill."""
    record.write_text("".join(f"{folder / name}\n" for folder in own_groups().values()))
    groups = divide(name)
    try:
        yield groups
    finally:
        release(groups)


def release_recorded(record: Path) -> None:
    """Remove the groups that a killed driver wrote down."""
    with contextlib.suppress(OSError):
        release([Path(line) for line in record.read_text().splitlines()])
