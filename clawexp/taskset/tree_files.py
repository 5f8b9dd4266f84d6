"""A folder of a task -> the files in it, by relative path."""

from collections.abc import Mapping
from pathlib import Path


class Unlayable(Exception):
    """A folder holds something that cannot be laid in a sandbox; the text says what."""


def tree_files(folder: Path) -> dict[str, Path]:
    """Every file below a folder, in order of path; none where the folder is not there. Raises Unlayable."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Unlayable(f"{path.relative_to(folder.parent)} is no regular file; put its content in its place")
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path
    return found


def read_tree(folder: Path) -> Mapping[str, bytes]:
    """Their contents. Raises OSError and Unlayable."""
    return {name: path.read_bytes() for name, path in tree_files(folder).items()}
