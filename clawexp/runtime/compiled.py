"""The program that is process 1 of every sandbox: `inside.c`, compiled once; `inside.py` where there is no compiler.

CACHE/inside/<digest of the source>-<machine>     a static program, so that it runs in any image
"""

import functools
import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from clawexp.cache import cache_folder
from clawexp.runtime import inside

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("inside.c")
COMPILE_S = 120
TAIL = 500
"""Bytes of a compiler's errors in a message."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Process 1, as a file of the host."""

    path: Path
    interpreted: bool
    """It runs under the sandbox's Python."""

    def argv(self, place: str, python: str) -> tuple[str, ...]:
        """What starts it where it is shown at `place`; its arguments follow."""
        return (python, "-I", "-S", place) if self.interpreted else (place,)


@functools.cache
def program() -> Program:
    """Chosen once for each process."""
    path = compiled(shutil.which("cc"))
    return Program(path=path or Path(inside.__file__), interpreted=path is None)


def compiled(compiler: str | None) -> Path | None:
    """The compiled one, made unless it is there; None where it cannot be, and why is in the log."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    place = cache_folder("inside") / f"{digest}-{platform.machine()}"
    if place.is_file():
        return place
    if compiler is None:
        log.info("no C compiler: process 1 of sandboxes is a Python program, which takes longer to start")
        return None
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = Path(folder, "inside")
        command = [compiler, "-Os", "-s", "-static", "-o", str(made), str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.info("process 1 of sandboxes is a Python program: %s", error)
            return None
        if done.returncode != 0:
            log.info("process 1 of sandboxes is a Python program: %s", done.stderr[-TAIL:].decode(errors="replace"))
            return None
        made.chmod(0o755)
        made.rename(place)
    return place
