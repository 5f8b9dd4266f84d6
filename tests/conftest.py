"""Options and fixtures that all tests share."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

WORDS_LIMIT_S = 60
"""For a command that starts nothing; it takes two seconds where nothing else runs."""
RUN_LIMIT_S = 2400
"""For a whole run that only a hang would keep so long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=Path, help="folder of recorded inputs; tests that replay them are skipped without")


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Path:
    """The folder of recorded inputs."""
    folder = request.config.getoption("--cases")
    if folder is None:
        pytest.skip("needs --cases PATH")
    return folder.absolute()


@pytest.fixture
def command_line(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m clawexp WORDS` in an empty folder, for commands that start nothing."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "clawexp", *words],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=WORDS_LIMIT_S,
        )

    return run


@pytest.fixture(scope="session")
def whole_run_in() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs an experiment to its end in a folder, with limits that a busy machine does not reach."""

    def run(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
        limits = [f"{name}=300" for name in ("rollout.settle_s", "rollout.sandbox_s", "rollout.grade_s")]
        return subprocess.run(
            [sys.executable, "-m", "clawexp", *overrides, *limits, "model.engine.start_s=300"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
        )

    return run


@pytest.fixture
def whole_run(
    whole_run_in: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same in an empty folder."""
    return functools.partial(whole_run_in, tmp_path)
