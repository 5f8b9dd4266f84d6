"""What `eval` scores; a whole evaluation is in tests/test_experiment.py."""

import json
from pathlib import Path

import pytest

from clawexp.commands.compose import composed, resolved
from clawexp.commands.eval import experiment_of
from clawexp.errors import ConfigError


@pytest.fixture
def pi_run(tmp_path: Path) -> str:
    """The folder of a run through pi."""
    (tmp_path / "config.json").write_text(json.dumps(resolved(composed(["harness=pi", "eval.num_tasks=3"]))))
    return f"resume={tmp_path}"


def test_a_run_is_scored_as_it_was_trained(pi_run: str) -> None:
    experiment = experiment_of([pi_run, "logger=[jsonl]"])
    assert list(experiment.harness) == ["pi"]
    assert experiment.eval.num_tasks == 3


def test_values_that_are_given_take_the_place_of_its_own(pi_run: str) -> None:
    experiment = experiment_of([pi_run, "eval.num_tasks=7", "harness.pi.timeout_s=9"])
    assert (experiment.eval.num_tasks, experiment.harness["pi"].needs().memory_mb > 0) == (7, True)


def test_an_option_that_is_given_makes_it_another_experiment(pi_run: str) -> None:
    experiment = experiment_of([pi_run, "harness=builtin"])
    assert list(experiment.harness) == ["builtin"]
    assert experiment.eval.num_tasks is None


def test_a_wrong_line_is_refused(pi_run: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval has num_tasks|did you mean eval\.num_tasks"):
        experiment_of([pi_run, "eval.num_task=7"])
    with pytest.raises(ConfigError, match="greater than or equal to 0"):
        experiment_of([pi_run, "eval.num_tasks=-1"])
    with pytest.raises(ConfigError, match="no run there"):
        experiment_of([f"resume={tmp_path}/other"])
    (tmp_path / "config.json").write_text('{"tas')
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        experiment_of([pi_run])
