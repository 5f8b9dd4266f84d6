import subprocess
import sys
from pathlib import Path

import pytest

from clawexp.errors import HarnessError
from clawexp.harness.pip import PipPackage


def package(version: str = "0.4.2", pins: tuple[str, ...] = ("typing-extensions==4.15.0",)) -> PipPackage:
    return PipPackage(name="typing-inspection", version=version, pins=pins)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "clawexp/harness"


def test_other_pins_have_another_place(cache: Path):
    pinned = (package(), package(version="0.4.1"), package(pins=()))
    assert len({each.root for each in pinned}) == 3
    assert {each.root.parent for each in pinned} == {cache}


@pytest.mark.harness
def test_what_is_installed_runs_under_a_python_that_has_nothing_else(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    installed = package()
    installed.install()
    code = f"import site; site.addsitedir({installed.places['package']!r}); import typing_inspection as t; print(t)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert str(installed.root) in done.stdout
    assert "typing_extensions==4.15.0" in (installed.root / "installed.txt").read_text()
    assert [path.name for path in cache.iterdir()] == [installed.root.name]


@pytest.mark.harness
def test_a_failed_installation_leaves_nothing(cache: Path):
    with pytest.raises(HarnessError, match=r"99\.99\.99"):
        package(version="99.99.99").install()
    assert list(cache.iterdir()) == []
