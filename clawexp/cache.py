"""What is fetched or built once, by programs of others, and kept in the user's cache."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clawexp.errors import ClawexpError
from clawexp.redact import is_secret

TAIL = 2000
"""Characters of a failed program's output in a message."""
OWN = ("npm_", "pip_")
"""Beginnings of variables that installers read, in lower case; a private registry's token is among them."""


def cache_folder(kind: str) -> Path:
    """Where things of this kind lie, there or not. `cache_folder("harness")` is `~/.cache/clawexp/harness`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clawexp" / kind


def say(line: str) -> None:
    """Tell how the work goes, on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What programs of others need, which may run anything on installation: no key of another service is in it."""
    return {name: value for name, value in environment.items() if not is_secret(name) or name.lower().startswith(OWN)}


def run_program(
    argv: Sequence[str],
    fault: type[ClawexpError],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    cure: str = "",
) -> str:
    """Run a program to its end; what it wrote to stdout and stderr, one after the other.

    `env` None: this process's own without secrets. Raises `fault` with the end of what a failed one said, and `cure`.
    """
    env = without_secrets(os.environ) if env is None else env
    try:
        done = subprocess.run(
            argv, env=env, cwd=cwd, timeout=timeout_s, text=True, stdin=subprocess.DEVNULL, capture_output=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise fault(f"{' '.join(argv)}: {error}") from error
    if done.returncode != 0:
        tail = (done.stderr or done.stdout)[-TAIL:].strip()
        hint = f"; {cure}" if cure else ""
        raise fault(f"{' '.join(argv)} ended with {done.returncode}{hint}. It said:\n{tail}")
    return done.stdout + done.stderr
