"""Removal of what a dead driver left."""

import os
from pathlib import Path

from clawexp.runtime.cgroup import release_recorded
from clawexp.runtime.rootless import call
from clawexp.scratch import alive, remove

DISCARD_S = 120.0


def sweep(root: Path) -> int:
    """Remove every sandbox folder under `root` whose driver is dead. Returns how many."""
    if not root.is_dir():
        return 0
    dead = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink() and not alive(path)]
    for path in dead:
        release_recorded(path / "groups")
        discard(path)
    return len(dead)


def discard(folder: Path) -> None:
    """Remove a folder whose `state` may hold files of a podman, which are not this user's."""
    state = folder / "state"
    if os.geteuid() != 0 and state.is_dir():
        call(["rm", "-rf", "--one-file-system", str(state)], {"PATH": os.defpath}, [], DISCARD_S)
    remove(folder)
