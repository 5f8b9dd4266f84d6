"""What a run must note of its surroundings to be repeated."""

import os
import platform
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import clawexp
from clawexp.spec import Experiment

PACKAGES = (
    "hydra-core",
    "mitmproxy",
    "numpy",
    "omegaconf",
    "renderers",
    "tensordict",
    "tokenizers",
    "torch",
    "wandb",
)


def describe_environment(experiment: Experiment) -> dict[str, Any]:
    """Versions, machine and git state. `{"python": "3.11.7", "packages": {...}, "git": {"commit": ...}}`"""
    return {
        "clawexp": clawexp.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "packages": {d.name: d.version for d in distributions() if d.name in PACKAGES},
        "git": _git(Path(clawexp.__file__).parent),
        "harness": {name: repr(harness) for name, harness in experiment.harness.items()},
    }


def _git(folder: Path) -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside of a checkout."""
    try:
        commit = _ask(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_ask(folder, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _ask(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
