import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.__main__ import main
from clawexp.commands.arguments import VERBS, Arguments, conf_folder, groups, sort_arguments, split_verb, usage
from clawexp.errors import ConfigError

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("line", "verb", "rest"),
    [
        ([], "train", []),
        (["algo=grpo"], "train", ["algo=grpo"]),
        (["-m", "algo.lr=1,2"], "train", ["-m", "algo.lr=1,2"]),
        (["~algo.lr"], "train", ["~algo.lr"]),
        (["+a=1"], "train", ["+a=1"]),
        (["train", "steps=1"], "train", ["steps=1"]),
        (["eval", "resume=x"], "eval", ["resume=x"]),
        (["evil"], "evil", []),
        (["eval", "--help"], "help", []),
        (["-h"], "help", []),
    ],
)
def test_the_verb_is_the_first_word_that_is_no_override(line: list[str], verb: str, rest: list[str]) -> None:
    assert split_verb(line) == (verb, rest)


def test_flags_and_overrides_may_stand_in_any_order() -> None:
    found = sort_arguments(["a=1", "--cfg", "job", "b=2", "-m", "--dry-run", "~c"])
    assert found == Arguments(overrides=("a=1", "b=2", "~c"), flags=("--cfg", "job", "-m"), dry_run=True)
    assert found.multirun
    assert found.shows
    assert found.flag("--cfg", "-c") == "job"
    assert found.flag("--config-name") is None


def test_a_flag_and_its_value_may_be_one_word() -> None:
    found = sort_arguments(["--config-name=lr", "--cfg=job", "a=1"])
    assert found == sort_arguments(["--config-name", "lr", "--cfg", "job", "a=1"])
    assert (found.flag("--config-name"), found.shows) == ("lr", True)


def test_a_flag_that_nobody_knows_or_that_lacks_its_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="--frob: no such flag"):
        sort_arguments(["--frob"])
    with pytest.raises(ConfigError, match="--config-dir: its value is missing"):
        sort_arguments(["steps=1", "--config-dir"])


def test_the_help_page_names_every_verb_every_group_and_every_option() -> None:
    page = usage()
    for verb in VERBS:
        assert f"  {verb}" in page
    found = groups(conf_folder())
    assert {"taskset", "harness", "runtime", "model", "model/engine", "algo", "logger"} <= set(found)
    for group, names in found.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"  {group}=")]
        assert all(name in line for name in names)


def test_every_folder_of_options_is_a_group() -> None:
    folders = {file.parent.relative_to(conf_folder()).as_posix() for file in conf_folder().rglob("*.yaml")}
    assert set(groups(conf_folder())) == folders - {"."}


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["eval", "--help"], ["algo=nonsense", "--help"]])
def test_help_is_printed_and_nothing_else_done(words: list[str], command_line: Run, tmp_path: Path) -> None:
    done = command_line(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, usage() + "\n", "")
    assert not list(tmp_path.iterdir())


def test_a_verb_that_nobody_knows_is_refused_with_the_known_ones(command_line: Run) -> None:
    done = command_line("trian", "steps=1")
    assert (done.returncode, done.stdout) == (2, "")
    verbs = "train, eval, doctor, prepare, replay, jobs, ps, reap"
    assert done.stderr == f"clawexp: trian: no such verb. Choose one of {verbs}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["doctor", "x"], "doctor takes no arguments, or runtime=podman"),
        (["reap", "x"], "reap takes no arguments"),
        (["ps", "x"], "ps takes no arguments"),
        (["prepare"], "prepare takes overrides"),
        (["prepare", "harness=opencalw"], "did you mean openclaw?"),
        (["replay"], "replay takes the folder of one run"),
        (["replay", "nowhere"], "nowhere: no run there"),
        (["eval", "-m"], "eval takes overrides only"),
        (["eval", "eval.num_tasks=0"], "leaves nothing to evaluate"),
        (["eval", "resume=nowhere"], "no run there"),
        (["resume=nowhere"], "no run there"),
        (["resume=auto"], "no unfinished run of this experiment"),
        (["-m", "algo.lr=1e-4,3e-4", "resume=auto"], "resume goes on with one run"),
        (["model.path=/nowhere"], "check model.path"),
    ],
)
def test_a_verb_that_cannot_be_carried_out_says_why(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["clawexp", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith("clawexp: ")
    assert said in printed.err
    assert not list(tmp_path.iterdir())
