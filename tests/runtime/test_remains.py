import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clawexp.runtime.cgroup import divided
from clawexp.runtime.remains import remains, telling_remains
from clawexp.scratch import scratch_folder, scratch_root

SOAK = Path(__file__).parents[2] / "benchmarks/soak_sandbox.py"
NOTHING = "0 containers, 0 processes, 0 mounts, 0 cgroups, 0 sockets, 0 folders"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A scratch root of this test's own; a short path, since sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="cx-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield scratch_root()


def test_everything_that_is_left_is_counted_and_what_is_anothers_is_not(root: Path) -> None:
    assert str(remains()) == NOTHING
    with scratch_folder("run-") as mine, divided(f"clawexp-{mine.name}", mine / "groups") as groups:
        (mine / "state/storage/overlay-containers/abc").mkdir(parents=True)
        (root / f"run-{os.getpid() + 1}-x").mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(mine / "door.sock"))
            env = {"HOME": str(mine / "home")}
            with (
                subprocess.Popen(["sleep", "1000"], env=env) as mine_too,
                subprocess.Popen(["sleep", "1000"], env={}) as not_mine,
            ):
                left = remains()
                mine_too.kill()
                not_mine.kill()
        assert (left.containers, left.processes, left.mounts, left.sockets, left.folders) == (1, 1, 0, 1, 1)
        assert left.cgroups == len(groups)
    assert str(remains()) == NOTHING


def test_nothing_is_said_plainly_and_anything_is_a_warning_with_what_to_do(
    root: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with telling_remains():
        pass
    assert capsys.readouterr().err == f"left of this run: {NOTHING}\n"
    with scratch_folder("run-"), caplog.at_level(logging.WARNING), telling_remains():
        pass
    assert "1 folders; when this process has ended: python -m clawexp reap" in caplog.text


def test_after_many_sandboxes_used_in_many_ways_nothing_is_left() -> None:
    done = subprocess.run([sys.executable, SOAK, "--cycles", "40"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
