"""A folder that appears whole or not at all, also when the machine stops."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the name `folder` once all its bytes are on disk; what had it is gone then."""
    partial, old = partial_folder(folder), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    for path in (*partial.iterdir(), partial):
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
