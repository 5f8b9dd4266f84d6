import pytest

from clawexp.commands.problem import Problem, nearest, nearest_key, refuse
from clawexp.errors import ConfigError

KEYS = ("algo", "algo.lr", "algo.clip_low", "eval", "eval.num_tasks", "eval.rollouts", "eval._target_", "num_tasks")


def test_no_problem_is_no_refusal() -> None:
    refuse([])


def test_problems_stand_under_each_other_in_two_columns() -> None:
    with pytest.raises(ConfigError) as raised:
        refuse([Problem(where="a=1", what="no such key"), Problem(where="steps=-1", what="too small")])
    assert str(raised.value).splitlines() == [
        "2 problems in the experiment; nothing was started",
        "  a=1       no such key",
        "  steps=-1  too small",
    ]


def test_the_nearest_word_is_offered_or_else_the_choice() -> None:
    assert nearest("opencalw", ["builtin", "openclaw"]) == "did you mean openclaw?"
    assert nearest("zzz", ["builtin", "pi"]) == "choose one of builtin, pi"
    assert nearest("zzz", [f"key{n}" for n in range(20)]) == "see --cfg job for all keys"
    assert nearest("zzz", []) == "there is none yet"


def test_a_key_is_near_by_its_last_part() -> None:
    assert nearest("lr", KEYS) == "did you mean algo.lr?"
    assert nearest_key("grpo.clip_low", KEYS) == "did you mean algo.clip_low?"


def test_a_key_is_looked_for_in_its_own_section_first() -> None:
    assert nearest_key("eval.num_task", KEYS) == "did you mean eval.num_tasks?"
    assert nearest_key("eval.foo", KEYS) == "eval has num_tasks, rollouts"
    assert nearest_key("num_task", KEYS) == "did you mean num_tasks?"
