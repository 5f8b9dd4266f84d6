from typing import Any

import pytest

from clawexp.commands.walk import key_paths, problems_of

EVAL = {"_target_": "clawexp.spec.EvalOptions", "num_tasks": 4, "rollouts": 2, "every": 0, "temperature": 1.0}
SOURCE = {"_target_": "clawexp.spec.Source", "package": "p==1", "file": "f", "template": "t"}
ENGINE = {
    "_target_": "clawexp.engine.embedded.Embedded",
    "slots": 4,
    "prefill_chunk": 16,
    "deterministic": False,
    "threads": 1,
    "start_s": 60,
}
MODEL: dict[str, Any] = {
    "_target_": "clawexp.spec.Model",
    "name": "m",
    "path": "/m",
    "rendering": "qwen3",
    "context": 8,
    "max_tokens": 4,
    "source": None,
    "engine": ENGINE,
}


def test_keys_are_dotted_and_sections_are_keys_too() -> None:
    assert list(key_paths({"a": {"b": 1, "c": {}}, "d": None})) == ["a", "a.b", "a.c", "d"]


def test_a_sound_section_has_no_problem() -> None:
    assert list(problems_of(EVAL)) == []
    assert list(problems_of(MODEL)) == []
    assert list(problems_of({**MODEL, "source": SOURCE})) == []


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    assert list(problems_of({**EVAL, "num_task": 4}, "eval.")) == [
        ("eval.num_task", "no such key; did you mean eval.num_tasks?")
    ]
    assert list(problems_of({**EVAL, "zzz": 4}, "eval.")) == [
        ("eval.zzz", "no such key; known here: num_tasks, rollouts, every, temperature")
    ]


def test_a_missing_key_and_a_wrong_value_are_found_in_one_go() -> None:
    wrong = {"_target_": "clawexp.spec.EvalOptions", "num_tasks": -1, "rollouts": "???", "temperature": "hot"}
    assert dict(problems_of(wrong)) == {
        "num_tasks": "should be greater than or equal to 0 (it is -1)",
        "rollouts": "has no value; every key stands in the option's file",
        "every": "has no value; every key stands in the option's file",
        "temperature": "should be a valid number, unable to parse string as a number (it is 'hot')",
    }


def test_sections_within_sections_are_walked() -> None:
    deep = {**MODEL, "engine": {**ENGINE, "slots": 0}, "context": 0, "source": {**SOURCE, "file": 3}}
    assert sorted(key for key, _ in problems_of(deep, "model.")) == [
        "model.context",
        "model.engine.slots",
        "model.source.file",
    ]


def test_components_by_two_names_are_walked() -> None:
    rule = {"_target_": "clawexp.rule.CapMaxTokens", "max_token": 3}
    capture = {"_target_": "clawexp.spec.CaptureOptions", "rules": {"mine": {"short": rule}}}
    assert list(problems_of(capture, "capture."))[-2:] == [
        ("capture.rules.mine.short.max_token", "no such key; did you mean capture.rules.mine.short.max_tokens?"),
        ("capture.rules.mine.short.max_tokens", "has no value; every key stands in the option's file"),
    ]


@pytest.mark.parametrize(
    "target", ["foo.Bar", "clawexp.spec.Nothing", "os.path", "clawexp.spec.Positive", "x", None, 3]
)
def test_a_section_that_names_no_component_is_a_problem_and_not_a_crash(target: object) -> None:
    ((key, what),) = problems_of({**MODEL, "engine": {**ENGINE, "_target_": target}}, "model.")
    assert key == "model.engine._target_"
    assert what == f"names no component (it is {target!r})"


def test_a_section_without_its_component_is_a_problem_too() -> None:
    ((key, _),) = problems_of({**MODEL, "engine": {"slots": 4}}, "model.")
    assert key == "model.engine._target_"


def test_what_only_a_component_itself_can_tell_is_told_of_its_section() -> None:
    bench = {"_target_": "clawexp.taskset.workbench.Workbench", "level": 1, "families": ["hunt"], "long_tokens": 9}
    ((key, what),) = problems_of(bench, "taskset.")
    assert key == "taskset"
    assert what.startswith("level 1 has no family hunt; choose from")


def test_a_value_that_refers_to_another_key_is_left_for_later() -> None:
    assert list(problems_of({**EVAL, "rollouts": "${seed}"})) == []
