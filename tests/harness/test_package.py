from pathlib import Path

import pytest

from clawexp.errors import HarnessError
from clawexp.harness.package import Package


def package(**changes: str) -> Package:
    values = {"name": "demo", "package": "semver", "version": "7.7.2", "binary": "semver", "node": "24.21.0"}
    return Package(**values | changes)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "clawexp/harness"


def test_without_npm_it_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(HarnessError, match="install nodejs and npm"):
        package().install()


def test_a_failed_program_is_told_with_its_last_words(cache: Path):
    with pytest.raises(HarnessError, match=r"(?s)ended with 3\. It said:\nno such thing"):
        package().call(["sh", "-c", "echo no such thing >&2; exit 3"], {"PATH": "/usr/bin:/bin"})


@pytest.mark.harness
def test_a_failed_installation_leaves_nothing(cache: Path):
    with pytest.raises(HarnessError, match=r"99\.99\.99"):
        package(node="99.99.99").install()
    assert list(cache.iterdir()) == []
