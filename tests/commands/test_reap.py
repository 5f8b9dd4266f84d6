import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from clawexp.commands.reap import run
from clawexp.scratch import mark, scratch_root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scratch root of this test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert scratch_root().parent == tmp_path
    return scratch_root()


def test_nothing_to_reap_is_no_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "removed 0 folders that killed runs had left; live ones hold 0" in capsys.readouterr().out
    assert not root.exists()


def test_what_a_dead_process_left_is_removed_and_a_live_run_stays(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = root / "run-live"
    live.mkdir(parents=True)
    mark(live, "live")
    program = (
        "import sys, pathlib; from clawexp.scratch import mark\n"
        "folder = pathlib.Path(sys.argv[1]); (folder / '00000-t-builtin-0').mkdir(parents=True); mark(folder, 'dead')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(root / "run-dead")], check=True, env=dict(os.environ))
    assert run([]) == 0
    assert capsys.readouterr().out == f"removed 1 folders that killed runs had left; live ones hold 1 under {root}\n"
    assert [path.name for path in root.iterdir()] == ["run-live"]
