"""The list as it is read; jobs that really run are in tests/launcher."""

from pathlib import Path

import pytest

from clawexp.commands.jobs import run
from clawexp.errors import ConfigError
from clawexp.launcher.job import Job, note


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of one's own, on a machine without a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")


def test_where_nothing_was_launched_the_list_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert capsys.readouterr().out.startswith("no jobs below runs/; launcher=slurm and launcher=subprocess")


def test_jobs_of_a_cluster_that_is_out_of_reach_are_known_by_their_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "runs" / "sweep"
    for number in ("0", "1"):
        checkpoint = sweep / number / "checkpoints" / f"step-0000{int(number) + 2}"
        checkpoint.mkdir(parents=True)
        (sweep / number / "config.json").write_text('{"steps": 3}')
        log = str(sweep / "slurm" / f"{number}.out")
        folder = str(sweep / number)
        note([Job(launcher="slurm", id=f"7_{number}", folder=folder, log=log, overrides=(f"seed={number}",))], sweep)
    (sweep / "1" / "finished").touch()
    assert run([]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["7_0", "ENDED", "2/3", "runs/sweep/0", "seed=0"],
        ["7_1", "COMPLETED", "3/3", "runs/sweep/1", "seed=1"],
    ]


def test_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="jobs takes no arguments"):
        run(["steps=3"])
