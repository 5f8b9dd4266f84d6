"""Options that all tests share."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=Path, help="folder of recorded inputs; tests that replay them are skipped without")


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Path:
    """The folder of recorded inputs."""
    folder = request.config.getoption("--cases")
    if folder is None:
        pytest.skip("needs --cases PATH")
    return folder
