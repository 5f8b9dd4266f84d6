"""Folders for what lives as long as a process: whose each is, whether that one still lives, and removal."""

import contextlib
import os
import platform
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from clawexp.errors import RuntimeFault

UNMARKED_S = 60.0
"""A folder without an owner is left alone for so long: its driver may be about to mark it."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


def scratch_root() -> Path:
    """Where the sandboxes of all this user's runs lie: a short path, since programs inside make sockets in it."""
    return Path(tempfile.gettempdir()) / f"clawexp-{os.getuid()}"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A folder of this process's own under the scratch root, while the context lasts; swept where it is killed.

    Its name is `prefix`, letters and a dash, with this process's id: so it is known whose is what refers to it.

    Raises RuntimeFault where the scratch root is another user's: what lies in it would be theirs to change.
    """
    root = scratch_root()
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o711)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RuntimeFault(f"{root} is no folder of yours; remove it, or let TMPDIR name a folder that is")
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=root))
    try:
        mark(folder, folder.name)
        yield folder
    finally:
        remove(folder)


def mark(folder: Path, run_id: str) -> None:
    """Write the `owner` file: host, boot, process id and its start time, run. One token a line."""
    pid = os.getpid()
    lines = (platform.node(), BOOT.read_text().strip(), str(pid), start_time(pid) or "", run_id)
    (folder / "owner").write_text("\n".join(lines) + "\n")


def alive(folder: Path) -> bool:
    """Whether the driver that made this folder may still use it. One on another host is taken to live."""
    try:
        host, boot, pid, started, _ = (folder / "owner").read_text().splitlines()
    except (OSError, ValueError):
        try:
            return time.time() - folder.lstat().st_mtime < UNMARKED_S
        except FileNotFoundError:  # whoever owned it was faster
            return True
    if host != platform.node():
        return True
    return boot == BOOT.read_text().strip() and started == start_time(int(pid))


def start_time(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process: with its id it names the process for good."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()  # a program may call itself anything
    except OSError:
        return None
    return line.rpartition(b")")[2].split()[19].decode()


def entries(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where it is gone, as it may be at any time, or closed to this user, or none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        return list(folder.iterdir())
    return []


def remove(path: Path) -> None:
    """Remove a tree of any depth and with any permissions. A tree that is not there is no error."""
    doomed = path.parent / f".gone-{uuid.uuid4().hex}"
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    try:
        shutil.rmtree(doomed)
    except (OSError, RecursionError):
        # Another process may be removing it too.
        with contextlib.suppress(FileNotFoundError):
            _flatten(doomed)


def _flatten(doomed: Path) -> None:
    """Remove a tree that was made to resist it.

    Each folder found is moved up to the top before it is emptied, so that neither the stack nor the length of
    a path grows with the depth.
    """
    pending = [doomed]
    while pending:
        folder = pending.pop()
        folder.chmod(stat.S_IRWXU)
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                Path(entry.path).chmod(stat.S_IRWXU)  # moving a folder writes into it
                pending.append(Path(entry.path).rename(doomed / uuid.uuid4().hex))
            else:
                with contextlib.suppress(FileNotFoundError):
                    Path(entry.path).unlink()
        if folder != doomed:
            folder.rmdir()
    doomed.rmdir()
