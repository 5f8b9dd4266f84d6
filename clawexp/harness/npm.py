"""An npm package, with a Node of its own: PACKAGE/node_modules/, PACKAGE/node/."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from clawexp.cache import run_program, say, without_secrets
from clawexp.component import component
from clawexp.errors import HarnessError
from clawexp.harness.package import CALL_S, INSTALL_S, appearing, place

NPM = (
    "npm",
    "install",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--loglevel=error",
    "--save-exact",
)
NODE = "node/node_modules/node/bin/node"


@component
class NpmPackage:
    """`{node}` in templates is the Node that runs it, `{package}` its own folder."""

    name: str
    version: str
    binary: str
    """The program that it brings, for the check of its version."""
    node: str
    """Version of Node, which npm installs first."""

    @property
    def root(self) -> Path:
        return place(self.name, [self.version, self.node])

    @property
    def places(self) -> Mapping[str, str]:
        return {"node": str(self.root / NODE), "package": str(self.root / "node_modules" / self.name)}

    @property
    def python(self) -> None:
        """It brings what runs it."""
        return None

    def install(self) -> None:
        if self.root.is_dir():
            return
        if shutil.which("npm") is None:
            raise HarnessError(f"{self.name} is an npm package, and npm is not in PATH; install nodejs and npm")
        with appearing(self.root) as made:
            self._npm(made / "node", f"node@{self.node}", os.environ["PATH"])
            # Node first: npm silently takes an older version of a package that needs a newer one.
            path = f"{(made / NODE).parent}:{os.environ['PATH']}"
            self._npm(made, f"{self.name}@{self.version}", path)
            self._check_version(made, path)
        say(f"{self.name} {self.version} with Node {self.node} in {self.root}")

    def _npm(self, folder: Path, wanted: str, path: str) -> None:
        say(f"npm install {wanted}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        env = {**without_secrets(os.environ), "PATH": path}
        run_program([*NPM, wanted], HarnessError, env=env, cwd=folder, timeout_s=INSTALL_S)

    def _check_version(self, made: Path, path: str) -> None:
        binary = made / "node_modules/.bin" / self.binary
        env = {"PATH": path, "HOME": str(made.parent)}
        said = run_program([str(binary), "--version"], HarnessError, env=env, timeout_s=CALL_S)
        if self.version not in said.split():
            raise HarnessError(f"{binary} says it is {said.strip()!r}, not the pinned {self.version}")
