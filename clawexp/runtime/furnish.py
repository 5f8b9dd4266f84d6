"""What a container shows of the host: its sandbox's folders, the door to the driver, the proxy, a harness's package."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clawexp.errors import RuntimeFault
from clawexp.records import Needs, Owner
from clawexp.runtime.compiled import program
from clawexp.runtime.container import SOCKET
from clawexp.runtime.folder import Folder
from clawexp.runtime.ids import ids

HOME = "/home/agent"
DOOR = "/run/clawexp"
PROXY = f"{DOOR}/proxy.sock"
FIRST = f"{DOOR}/inside"
SYSTEM = frozenset(("usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "dev", "run", "sys"))
"""Folders of the root that are the image's, or the kernel's."""


def is_free(inside: str) -> bool:
    """Whether a task can have this path for itself."""
    path = Path(inside)
    return path.is_absolute() and len(path.parts) > 1 and path.parts[1] not in SYSTEM


def furnish(folder: Folder) -> None:
    """Lay down what process 1 needs, and give the rest to the agent."""
    folder.path.chmod(0o711)
    place = folder.path / "door"
    place.mkdir(mode=0o711)
    shutil.copyfile(program().path, place / Path(FIRST).name)
    (place / Path(FIRST).name).chmod(0o755)
    (place / Path(PROXY).name).touch()  # where the proxy's socket is mounted
    agent = ids().agent
    for path in folder.places():
        os.chown(path, agent, agent if os.geteuid() == 0 else -1)


def mount_points(folder: Folder, needs: Needs) -> dict[Path, Path]:
    """What lies in the sandbox's own /tmp only because something of the host is shown there -> what that is."""
    inside = {Path(there): Path(here) for here, there in needs.mounts.items()}
    return {
        folder.tmp / there.relative_to("/tmp"): here for there, here in inside.items() if there.is_relative_to("/tmp")
    }


def make_mount_points(points: Mapping[Path, Path]) -> None:
    """Make them: a container's runtime would do it as a user whose files the driver may be unable to remove."""
    for point, shown in points.items():
        (point if shown.is_dir() else point.parent).mkdir(parents=True, exist_ok=True)
        if not shown.is_dir():
            point.touch()


def mounts(folder: Folder, workspace: str, needs: Needs, owner: Owner) -> list[dict[str, Any]]:
    """The sandbox's own folders, what the harness asks for, the door and the proxy."""
    own = {HOME: folder.home, workspace: folder.workspace}
    own |= {inside: folder.further(inside) for inside in folder.folders}
    shown = {"/tmp": folder.tmp, **own}
    mounts: list[dict[str, Any]] = [_mount(outside, inside, read_only=False) for inside, outside in shown.items()]
    for outside, inside in needs.mounts.items():
        if any(Path(inside).is_relative_to(place) for place in own):
            raise RuntimeFault(
                f"{outside} cannot be shown in a sandbox: {', '.join(own)} are the task's own there. "
                "Keep it elsewhere; the cache of harnesses moves with XDG_CACHE_HOME"
            )
        mounts.append(_mount(Path(outside), inside, read_only=True))
    mounts.append(_mount(folder.path / "door", DOOR, read_only=True))
    if owner.proxy_socket:
        mounts.append(_mount(owner.proxy_socket, PROXY, read_only=True))
    return mounts


def _mount(outside: Path, inside: str, *, read_only: bool) -> dict[str, Any]:
    return {"type": "bind", "source": str(outside), "target": inside, "read_only": read_only}


def first(python: str, needs: Needs, owner: Owner) -> list[str]:
    """The command line of process 1. It listens for the proxy where that is dialled by its port."""
    forwarded = owner.proxy_socket is not None and not needs.dials_socket
    own = [f"{DOOR}/{SOCKET}", *([str(owner.proxy_port), PROXY] if forwarded else [])]
    return [*program().argv(FIRST, python), *own]
