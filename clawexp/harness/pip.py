"""A Python package in a virtual environment of its own, run by the Python of the sandbox: PACKAGE/venv/.

The environment's own interpreter is a link to this machine's, which a container does not show. So harnesses start the
sandbox's interpreter and add the environment's packages; that must be the Python which they were installed for.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from clawexp.cache import run_program, say, without_secrets
from clawexp.component import component
from clawexp.errors import HarnessError
from clawexp.harness.package import INSTALL_S, appearing, place

PIP = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet")
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
INSTALLED = "installed.txt"
"""What pip found to be there, with versions."""


@component
class PipPackage:
    """`{package}` in templates is the folder of the environment's packages, for `site.addsitedir`."""

    name: str
    version: str
    pins: tuple[str, ...]
    """Further packages whose versions decide what is sent to the model: `litellm==1.110.2`."""

    @property
    def root(self) -> Path:
        return place(self.name, [self.version, *self.pins, MINOR])

    @property
    def places(self) -> Mapping[str, str]:
        return {"package": str(self.root / "venv/lib" / f"python{MINOR}" / "site-packages")}

    @property
    def python(self) -> str:
        return MINOR

    def install(self) -> None:
        if self.root.is_dir():
            return
        with appearing(self.root) as made:
            say(f"pip install {self.name}=={self.version}")
            self._run(sys.executable, "-m", "venv", str(made / "venv"))
            python = str(made / "venv/bin/python")
            self._run(python, *PIP, f"{self.name}=={self.version}", *self.pins)
            (made / INSTALLED).write_text(self._run(python, "-m", "pip", "freeze", "--disable-pip-version-check"))
        say(f"{self.name} {self.version} for Python {MINOR} in {self.root}")

    def _run(self, *argv: str) -> str:
        env = without_secrets(os.environ)
        # Where this process finds more packages, the new environment shall not.
        env = {name: value for name, value in env.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return run_program(argv, HarnessError, env=env, timeout_s=INSTALL_S)
