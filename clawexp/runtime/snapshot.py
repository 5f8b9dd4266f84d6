"""What a sandbox's folder holds, kept as a copy and brought back in place. Nothing may run in the sandbox meanwhile.

    FOLDER/snapshots/NAME/      the copies, under the names that the originals have in FOLDER

A harness may have left anything: links are kept as links, pipes as pipes, and nothing is followed.
"""

import contextlib
import os
import stat
import subprocess
import uuid
from pathlib import Path

from clawexp.errors import RuntimeFault
from clawexp.runtime.folder import Folder
from clawexp.scratch import remove

COPY_S = 300.0
TAIL = 500
"""Characters of a failed copy's errors in a message."""


def keep(folder: Folder) -> str:
    """Copy all that programs inside could write; the name of the copy. Raises RuntimeFault."""
    name = uuid.uuid4().hex
    for place in folder.places():
        target = folder.path / "snapshots" / name / place.relative_to(folder.path)
        target.mkdir(parents=True, mode=0o700)
        _copy(place, target)
    return name


def bring_back(folder: Folder, name: str) -> None:
    """Lay a snapshot's files into places that are empty. Raises RuntimeFault."""
    kept = folder.path / "snapshots" / name
    if not name or not kept.is_dir():
        raise RuntimeFault(f"{folder.path.name} has no snapshot {name!r}; those of another sandbox are not its own")
    for place in folder.places():
        _copy(kept / place.relative_to(folder.path), place)


def empty(folder: Folder) -> None:
    """Make all places what they were when the folder was made. They stay the same folders, so mounts stay too."""
    doomed = folder.path / f"doomed-{uuid.uuid4().hex}"
    doomed.mkdir(mode=0o700)
    for place in folder.places():
        place.chmod(0o755)
        for name in os.listxattr(place):  # rights by default for whatever is made there
            with contextlib.suppress(OSError):
                os.removexattr(place, name)
        with os.scandir(place) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                Path(entry.path).chmod(stat.S_IRWXU)  # moving a folder writes into it
            Path(entry.path).rename(doomed / uuid.uuid4().hex)
    remove(doomed)


def _copy(source: Path, target: Path) -> None:
    argv = ["cp", "--archive", "--reflink=auto", "--", f"{source}/.", str(target)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COPY_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeFault(f"a sandbox's files could not be copied: {error}") from error
    if done.returncode != 0:
        raise RuntimeFault(f"a sandbox's files could not be copied: {done.stderr[-TAIL:].strip()}")
