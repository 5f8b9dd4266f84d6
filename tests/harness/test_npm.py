from pathlib import Path

import pytest

from clawexp.errors import HarnessError
from clawexp.harness.npm import NpmPackage


def package(**changes: str) -> NpmPackage:
    return NpmPackage(**{"name": "semver", "version": "7.7.2", "binary": "semver", "node": "24.21.0"} | changes)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "clawexp/harness"


def test_without_npm_it_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(HarnessError, match="install nodejs and npm"):
        package().install()


def test_another_version_of_it_or_of_node_has_another_place(cache: Path):
    pinned = (package(), package(version="7.7.1"), package(node="24.20.0"))
    assert len({each.root for each in pinned}) == 3
    assert {each.root.parent for each in pinned} == {cache}


@pytest.mark.harness
def test_a_failed_installation_leaves_nothing(cache: Path):
    with pytest.raises(HarnessError, match=r"99\.99\.99"):
        package(node="99.99.99").install()
    assert list(cache.iterdir()) == []
