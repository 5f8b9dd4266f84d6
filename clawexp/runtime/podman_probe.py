"""What this machine gives to rootless containers, point by point, and what to do about what it does not give."""

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clawexp.runtime.cgroup import CONTROLLERS, own_groups, unlimited
from clawexp.runtime.ids import unmapped
from clawexp.runtime.oci import KINDS, OciRuntime
from clawexp.runtime.rootless import unavailable
from clawexp.runtime.seccomp import PROFILES

ANSWER_S = 20
OVERLAY_KERNEL = (5, 11)
"""From then on a user may mount overlays, without a program in between."""
FILES = 4096
"""Open files that a harness is at ease with."""
LOCKS = 2048
"""Of podman, one for each container that there is at once; each run has a podman of its own."""


@dataclass(frozen=True)
class Point:
    """`Point("subordinate ids", False, "/etc/subuid gives ann no 65536 ids; as root: usermod ...")`"""

    name: str
    good: bool
    note: str


def points(oci_runtime: OciRuntime) -> Iterator[Point]:
    """Everything that containers here depend on. `oci_runtime`: the chosen one."""
    reason = unavailable()
    yield Point("rootless", reason is None, reason or f"{_version('podman')}, {_version('conmon')}")
    yield _cgroups()
    yield Point("limits", unlimited() is None, unlimited() or f"{', '.join(sorted(own_groups()))} of a sandbox")
    yield Point("ids", unmapped() is None, unmapped() or "65536 for the users of a container")
    yield _storage()
    profile = next((path for path in PROFILES if path.exists()), None)
    yield Point("seccomp", profile is not None, str(profile or "no profile: install containers-common"))
    yield _tun()
    yield Point("locks", True, f"{LOCKS} containers at once in each run, at most")
    yield from _quotas()
    yield from _oci_runtimes(oci_runtime)


def _cgroups() -> Point:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return Point("cgroups", False, "version 2: a driver cannot make groups below one that it is in; no limits")
    kind = "version 1, with an empty half of version 2" if (root / "unified").is_dir() else "version 1"
    mounted = [name for name in CONTROLLERS if (root / name).is_dir()]
    return Point("cgroups", bool(mounted), f"{kind}: {', '.join(mounted) or 'no controllers are mounted'}")


def _storage() -> Point:
    numbers = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if "overlay" not in Path("/proc/filesystems").read_text():
        return Point("storage", False, "the kernel has no overlay file system; as root: modprobe overlay")
    new = numbers >= OVERLAY_KERNEL
    return Point("storage", new, "overlay" if new else f"Linux {platform.release()} lets no user mount overlays: 5.11")


def _tun() -> Point:
    there = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    return Point("/dev/net/tun", True, f"{'usable' if there else 'not usable'}, and not needed: there is no network")


def _quotas() -> Iterator[Point]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    note = f"{files} in a process" + ("" if files >= FILES else "; raise it with ulimit -Hn, or in limits.conf")
    yield Point("open files", files >= FILES, note)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    unlimited_here = processes == resource.RLIM_INFINITY
    yield Point(
        "processes", True, "no limit" if unlimited_here else f"{processes} of this user, all sandboxes together"
    )
    watched = Path("/proc/sys/fs/inotify/max_user_instances").read_text().strip()
    yield Point("file watchers", True, f"{watched} of a user; as root: sysctl fs.inotify.max_user_instances=1024")


def _oci_runtimes(chosen: OciRuntime) -> Iterator[Point]:
    for name, kind in KINDS.items():
        there = shutil.which(kind.program) is not None
        used = "the one that is used" if name == chosen else f"not used; runtime.oci_runtime={name}"
        note = f"{_version(kind.program)}; {used}" if there else f"not in PATH: {kind.brought_by}"
        yield Point(kind.program, there, note)


def _version(program: str) -> str:
    """What it says of itself, in one line."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {error}"
    return (done.stdout.splitlines() or [f"{program} says nothing"])[0]
