import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from clawexp.commands.ps import run
from clawexp.runtime.label import new_label, write_label
from clawexp.scratch import scratch_root


def test_every_sandbox_has_a_line_and_a_dead_drivers_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run([]) == 0
    assert capsys.readouterr().out == f"no sandboxes under {scratch_root()}\n"
    for name, changes in (("alive", {}), ("dead", {"owner": f"{os.getpid()}:1", "made": 0})):
        folder = scratch_root() / "run-1" / name
        folder.mkdir(parents=True)
        write_label(folder, replace(new_label("run-1", name, "bubblewrap"), **changes))
    assert run([]) == 0
    head, alive, dead = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "rollout", "runtime", "age", "driver"]
    assert alive.split()[:3] == ["run-1", "alive", "bubblewrap"]
    assert alive.split()[-1] == str(os.getpid())
    assert dead.endswith("is dead: python -m clawexp reap")
