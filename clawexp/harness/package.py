"""A program of others at a pinned version, in the user's cache: what every kind of package has, and how it gets there.

A kind says how it is installed into an empty folder. The folder appears at its place whole or not at all, and never
changes there.
"""

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from clawexp.cache import cache_folder, run_program, say
from clawexp.errors import HarnessError

INSTALL_S = 900
CALL_S = 180


@runtime_checkable
class Package(Protocol):
    """One kind of package, pinned."""

    @property
    def root(self) -> Path:
        """Its folder in the cache, there or not; other pins have another."""
        ...

    @property
    def places(self) -> Mapping[str, str]:
        """What stands for its paths in the templates of a harness. `{"package": "/...", "node": "/..."}`"""
        ...

    @property
    def python(self) -> str | None:
        """The minor version of Python that can run it, `3.11`; None: it needs none of the sandbox."""
        ...

    def install(self) -> None:
        """Fetch it unless it is there, with progress on stderr. Raises HarnessError."""
        ...


def place(package: str, pins: Sequence[str]) -> Path:
    """Where a package lies. `place("@openai/codex", [...])` is `.../harness/codex-0123456789ab`"""
    name = re.sub(r"\W", "_", package.rpartition("/")[2])
    return cache_folder("harness") / f"{name}-{digest([package, *pins])}"


def mark(root: Path, value: Any) -> Path:
    """A file beside a package that stands for `value`, any JSON value."""
    return root.with_name(f"{root.name}.{digest(value)}.accepted")


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


@contextlib.contextmanager
def appearing(root: Path) -> Iterator[Path]:
    """An empty folder that becomes `root` at the end of the context, unless that fails. Raises HarnessError."""
    with scratch(root) as folder:
        made = folder / root.name
        made.mkdir()
        yield made
        try:
            made.rename(root)
        except OSError as error:
            if not root.is_dir():  # otherwise whoever was faster installed the same
                raise HarnessError(f"{root} could not be made: {error}") from error


@contextlib.contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A folder beside a package that is gone afterwards."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def call(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Run a program of a package to its end. Returns what it says. Raises HarnessError."""
    say(" ".join(argv))
    return run_program(argv, HarnessError, env=env, timeout_s=CALL_S)
