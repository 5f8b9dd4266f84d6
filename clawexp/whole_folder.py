"""A folder that appears whole or not at all, also when the machine stops."""

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SEAL = "checksums.json"
BLOCK = 1 << 20


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the name `folder` once all its bytes are on disk; what had it is gone then."""
    partial, old = partial_folder(folder), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    partial.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def partial_folder(folder: Path) -> Path:
    """Where `whole_folder` has its bytes until they are whole."""
    return folder.with_name(f".{folder.name}.partial")


def seal(folder: Path) -> None:
    """Note the checksum of every file, for `check_seal`."""
    (folder / SEAL).write_text(json.dumps(_checksums(folder), indent=1))


def check_seal(folder: Path) -> None:
    """Raise ValueError where a file is not as it was sealed, or is gone. A folder without a seal is not checked."""
    if not (folder / SEAL).exists():
        return
    noted, found = json.loads((folder / SEAL).read_text()), _checksums(folder)
    if damaged := sorted(name for name in noted if noted[name] != found.get(name)):
        raise ValueError(f"{', '.join(damaged)}: gone or damaged; their bytes are not those that were written")


def _checksums(folder: Path) -> dict[str, int]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL]
    return {str(path.relative_to(folder)): _checksum(path) for path in files}


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return found


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
