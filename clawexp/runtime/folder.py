"""The folder that holds one sandbox, and safe access to what a harness left in it.

    ROOT/<rollout id>/owner      who made it
                      etc/       stubs of /etc/passwd and the like
                      workspace/ home/ tmp/
                      folders/N  the task's further folders

A harness may plant links, pipes and unreadable folders. Nothing here follows a link, waits on a pipe, or
recurses.
"""

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from clawexp.errors import RuntimeFault
from clawexp.records import Owner
from clawexp.scratch import alive, mark, remove

MAX_FILES = 20_000
"""Files beyond this many are not listed."""
MAX_DEPTH = 64
"""Nor are files in deeper folders."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ETC = {
    "passwd": "agent:x:1000:1000::/home/agent:/bin/sh\n",
    "group": "agent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One sandbox's place on the host."""

    path: Path
    file_bytes: int
    """Larger files are not read."""
    folders: tuple[str, ...]
    """Further folders, by their path inside."""

    @property
    def workspace(self) -> Path:
        return self.path / "workspace"

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    def places(self) -> list[Path]:
        """All folders that programs inside can write to."""
        return [self.workspace, self.home, self.tmp, *map(self.further, self.folders)]

    def further(self, inside: str) -> Path:
        """Where one of `folders` lies on the host."""
        return self.path / "folders" / str(self.folders.index(inside))

    def put(self, path: str, content: bytes) -> None:
        """Write one file. What stood at its place, or in its way as a link, is replaced, not followed."""
        root, parts = self._place(path)
        with _walk(root, parts[:-1], make=True) as parent:
            fresh = f".{uuid.uuid4().hex}"
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                _give(descriptor, parent)
            os.rename(fresh, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)

    def get(self, path: str) -> bytes:
        """Read one regular file. A link, a pipe or an oversized file counts as none: FileNotFoundError."""
        root, parts = self._place(path)
        with _absent(path), _walk(root, parts[:-1], make=False) as parent:
            # O_NONBLOCK: opening a pipe must not wait for its other end.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(parts[-1], flags, dir_fd=parent)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(errno.EINVAL, "not a regular file")
                if found.st_size > self.file_bytes:
                    raise OSError(errno.EFBIG, f"larger than {self.file_bytes} bytes")
                return file.read(self.file_bytes)

    def files(self) -> dict[str, int]:
        """Size of every regular file under the workspace, in order of path."""
        sizes: dict[str, int] = {}
        pending: list[tuple[str, ...]] = [()]
        while pending and len(sizes) < MAX_FILES:
            parts = pending.pop()
            # A folder that the harness made unreadable lists as empty.
            with contextlib.suppress(OSError), _walk(self.workspace, parts, make=False) as folder:
                for name, size in _entries(folder):
                    if size is not None:
                        sizes["/".join((*parts, name))] = size
                    elif len(parts) < MAX_DEPTH:
                        pending.append((*parts, name))
        return dict(sorted(sizes.items()))

    def _place(self, path: str) -> tuple[Path, tuple[str, ...]]:
        root = self.home if path.startswith("~/") else self.workspace
        inside = path.removeprefix("~/")
        for folder in self.folders:
            if path.startswith(f"{folder}/"):
                root, inside = self.further(folder), path.removeprefix(f"{folder}/")
        parts = PurePosixPath(inside).parts
        if not parts or parts[0] == "/" or ".." in parts or "\0" in path:
            further = "".join(f", or {folder}/path" for folder in self.folders)
            raise RuntimeFault(f"{path!r} is no path in a sandbox; use a relative path, ~/path for home{further}")
        return root, parts


@contextlib.contextmanager
def _absent(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileNotFoundError(errno.ENOENT, f"no such file to read ({error.strerror})", path) from error


@contextlib.contextmanager
def _walk(root: Path, parts: tuple[str, ...], *, make: bool) -> Iterator[int]:
    """Open a folder below `root` one component at a time, never through a link."""
    current = os.open(root, FOLDER)
    try:
        for part in parts:
            below = _enter(current, part, make=make)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _entries(folder: int) -> Iterator[tuple[str, int | None]]:
    """Name and size of each regular file, name and None of each folder; nothing else."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name, None
            elif entry.is_file(follow_symlinks=False):
                yield entry.name, entry.stat(follow_symlinks=False).st_size


def _enter(parent: int, name: str, *, make: bool) -> int:
    made = make and _clear(parent, name)
    entered = os.open(name, FOLDER, dir_fd=parent)
    if made:
        _give(entered, parent)
    return entered


def _give(descriptor: int, parent: int) -> None:
    """What root makes in a folder is its owner's: programs of a container run as an id that is not root's."""
    if os.geteuid() == 0:
        owner = os.fstat(parent)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _clear(parent: int, name: str) -> bool:
    """Make `name` a folder that can be entered, whatever the harness left there. True where it is a new one."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=parent)
        return True
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        os.mkdir(name, 0o755, dir_fd=parent)
        return True
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(name, 0o755, dir_fd=parent)
    return False


def create(owner: Owner, file_bytes: int, folders: tuple[str, ...] = ()) -> Folder:
    """Make the folder of a rollout's sandbox, replacing one that a dead driver left. Raises RuntimeFault."""
    name = owner.rollout_id
    if not name or name != Path(name).name or name.startswith("."):
        raise RuntimeFault(f"rollout id {name!r} cannot name a folder")
    path = owner.root / name
    if path.exists():
        if alive(path):
            raise RuntimeFault(f"{path}: a live sandbox has this name already; rollout ids must be unique")
        remove(path)
    path.mkdir(parents=True, mode=0o700)
    mark(path, owner.run_id)
    for part in ("etc", "workspace", "home", "tmp", *(f"folders/{number}" for number in range(len(folders)))):
        (path / part).mkdir(mode=0o755, parents=True)
    for file, content in ETC.items():
        (path / "etc" / file).write_text(content)
    return Folder(path=path, file_bytes=file_bytes, folders=folders)
