"""One npm package at a pinned version, with a Node of its own, in the user's cache."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawexp.cache import cache_folder, run_program, say, without_secrets
from clawexp.errors import HarnessError

NPM = (
    "npm",
    "install",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--loglevel=error",
    "--save-exact",
)
INSTALL_S = 900
CALL_S = 180


@dataclass(frozen=True, kw_only=True)
class Package:
    """What is installed, and where."""

    name: str
    package: str
    version: str
    binary: str
    node: str

    @property
    def root(self) -> Path:
        """Folder of this package and its Node; other pins have another."""
        return cache_folder("harness") / f"{self.name}-{_digest([self.package, self.version, self.node])}"

    @property
    def folder(self) -> Path:
        """The package itself."""
        return self.root / "node_modules" / self.package

    @property
    def interpreter(self) -> Path:
        """The Node that runs it."""
        return self.root / "node/node_modules/node/bin/node"

    def mark(self, value: Any) -> Path:
        """A file beside the package that stands for `value`, any JSON value."""
        return self.root.with_name(f"{self.root.name}.{_digest(value)}.accepted")

    def install(self) -> None:
        """Install unless it is there. It appears whole or not at all. Raises HarnessError."""
        if self.root.is_dir():
            return
        if shutil.which("npm") is None:
            raise HarnessError(f"{self.name} is an npm package, and npm is not in PATH; install nodejs and npm")
        with self.scratch() as scratch:
            place = scratch / self.root.name
            self._npm(place / "node", f"node@{self.node}", os.environ["PATH"])
            # Node first: npm silently takes an older version of a package that needs a newer one.
            path = f"{place}/node/node_modules/node/bin:{os.environ['PATH']}"
            self._npm(place, f"{self.package}@{self.version}", path)
            self._check_version(place, path)
            try:
                place.rename(self.root)
            except OSError as error:
                if not self.root.is_dir():  # otherwise whoever was faster installed the same
                    raise HarnessError(f"{self.name} could not be put to {self.root}: {error}") from error

    def _npm(self, place: Path, wanted: str, path: str) -> None:
        say(f"{self.name}: npm install {wanted}")
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text("{}")
        env = {**without_secrets(os.environ), "PATH": path}
        run_program([*NPM, wanted], HarnessError, env=env, cwd=place, timeout_s=INSTALL_S)

    def _check_version(self, place: Path, path: str) -> None:
        binary = place / "node_modules/.bin" / self.binary
        env = {"PATH": path, "HOME": str(place.parent)}
        said = run_program([str(binary), "--version"], HarnessError, env=env, timeout_s=CALL_S)
        if self.version not in said.split():
            raise HarnessError(f"{binary} says it is {said.strip()!r}, not the pinned {self.version}")
        say(f"{self.name}: {self.package} {self.version} with Node {self.node} in {self.root}")

    def call(self, argv: Sequence[str], env: Mapping[str, str]) -> str:
        """Run a program of the package to its end. Returns what it says. Raises HarnessError."""
        say(f"{self.name}: {' '.join(argv[1:])}")
        return run_program(argv, HarnessError, env=env, timeout_s=CALL_S)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder in the cache that is gone afterwards."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=self.root.parent, prefix=f".{self.name}-", ignore_cleanup_errors=True
        ) as path:
            yield Path(path)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
