"""What the default verb does short of a run; runs are in tests/test_experiment.py."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from clawexp.commands.train import run
from clawexp.errors import ConfigError

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In these tests nothing may be written."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def test_a_dry_run_prints_the_experiment_and_what_it_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["steps=3", "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert "steps: 3" in page
    assert "# would start, once: Embedded(" in page


def test_a_dry_run_of_a_sweep_says_how_many_points_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-m", "algo.lr=1e-4,3e-4", "seed=0,1,2", "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# a sweep of 6 points; the first:\n")
    assert OmegaConf.create(page).algo.lr == 1e-4


def test_a_primary_config_that_sweeps_by_itself_is_checked_and_counted_and_the_line_has_the_last_word(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("sweeps")
    text = (
        "defaults: [config, _self_]\nhydra: {{mode: MULTIRUN, sweeper: {{params: {{algo.lr: '{}', seed: '0,1'}}}}}}\n"
    )
    (folder / "right.yaml").write_text(text.format("1e-4,3e-4"))
    (folder / "wrong.yaml").write_text(text.format("1e-4,x"))
    assert run(["--config-dir", str(folder), "--config-name", "right", "seed=0,1,2", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("# a sweep of 6 points; the first:\n")
    with pytest.raises(ConfigError, match=r"algo\.lr=1e-4,x"):
        run(["--config-dir", str(folder), "--config-name", "wrong", "--dry-run"])


def test_a_dry_run_of_a_wrong_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="several values"):
        run(["algo.lr=1e-4,3e-4", "--dry-run"])
    with pytest.raises(ConfigError, match="2 problems"):
        run(["-m", "algo.lr=1e-4,x", "steps=0", "--dry-run"])


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "algo.lr=1e-4,3e-4", "resume=auto"],
        ["-m", "resume=a,b"],
        ["hydra.run.dir=elsewhere", "resume=runs/x"],
        ["--config-name", "config", "resume=auto"],
    ],
)
def test_going_on_with_a_run_excludes_whatever_makes_other_folders(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="resume goes on with one run where it is"):
        run(words)


def test_the_composed_config_can_be_shown(command_line: Run) -> None:
    done = command_line("--cfg", "job", "--resolve", "steps=3", "harness=pi")
    assert (done.returncode, done.stderr) == (0, "")
    shown = OmegaConf.create(done.stdout)
    assert (shown.steps, list(shown.harness)) == (3, ["pi"])
    part = command_line("--cfg", "job", "--package", "algo")
    assert "\nlr: " in part.stdout
    assert "\nsteps:" not in part.stdout


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("hydra.run.dir=/dev/null/x", "cannot be made: .*Not a directory"),
        ("hydra.run.dir=", "no folder is named"),
        ("hydra.run.dir=''", "no folder is named"),
    ],
)
def test_a_folder_that_cannot_be_the_runs_is_refused(word: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        run([word])
