"""Which rollouts a step and an evaluation make."""

from collections import Counter
from dataclasses import replace

import pytest

from clawexp.attempt import (
    evaluation_attempts,
    further_attempts,
    seed_of,
    shared_out,
    tasks_per_step,
    training_attempts,
)
from clawexp.commands.compose import build, composed
from clawexp.spec import Experiment


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return build(composed([]))


def test_a_step_tries_each_task_as_often_as_a_group_is_large(experiment: Experiment) -> None:
    attempts = training_attempts(experiment, 2)
    assert len({attempt.rollout_id for attempt in attempts}) == len({a.seed for a in attempts}) == len(attempts) == 64
    assert set(Counter(attempt.task.id for attempt in attempts).values()) == {8}
    assert all(attempt.task.split == "train" and attempt.temperature is None for attempt in attempts)


def test_steps_have_tasks_of_their_own_and_the_same_ones_again_on_resume(experiment: Experiment) -> None:
    first, second = training_attempts(experiment, 0), training_attempts(experiment, 1)
    assert not {a.task.id for a in first} & {a.task.id for a in second}
    assert [a.rollout_id for a in training_attempts(experiment, 1)] == [a.rollout_id for a in second]


def test_several_harnesses_share_the_tasks_of_a_step_by_their_own_numbers(experiment: Experiment) -> None:
    mixed = build(composed(["harness=[builtin,openclaw]"]))
    assert tasks_per_step(mixed) == 8 + 2
    attempts = training_attempts(mixed, 0)
    assert Counter(a.harness_name for a in attempts) == {"builtin": 8 * 8, "openclaw": 2 * 4}
    assert len({a.task.id for a in attempts}) == 10


def test_weights_decide_the_shares_when_they_are_given() -> None:
    words = ["harness=[builtin,openclaw]", "num_tasks=3", "harness.builtin.weight=1", "harness.openclaw.weight=5"]
    mixed = build(composed(words))
    names = [a.harness_name for step in range(4) for a in training_attempts(mixed, step) if a.number == 0]
    assert Counter(names) == {"builtin": 2, "openclaw": 10}


def test_the_mix_shares_a_step_equally_between_two_harnesses() -> None:
    attempts = training_attempts(build(composed(["harness=mix", "group_size=4"])), 0)
    assert Counter(a.harness_name for a in attempts) == {"builtin": 8, "claude_code": 8}


@pytest.mark.parametrize("weights", [{"a": 1.0}, {"a": 1.0, "b": 1.0}, {"a": 0.1, "b": 3.0, "c": 2.0}])
def test_shares_hold_over_every_stretch_of_steps(weights: dict[str, float]) -> None:
    steps = [shared_out(weights, step * 7, 7) for step in range(40)]
    assert all(len(step) == 7 for step in steps)
    given = Counter(name for step in steps for name in step)
    for name, weight in weights.items():
        assert abs(given[name] - 280 * weight / sum(weights.values())) < 1.5


def test_further_rounds_of_a_step_try_tasks_of_their_own_and_the_same_ones_again_on_resume(
    experiment: Experiment,
) -> None:
    tried = {attempt.task.id for attempt in training_attempts(experiment, 2)}
    first, second = (further_attempts(experiment, 2, number, 8, tried) for number in (1, 2))
    few = further_attempts(experiment, 2, 1, 3, tried)
    assert len({a.rollout_id for a in (*first, *second)} | tried) == 64 + 64 + 8
    assert [a.rollout_id for a in few] == [a.rollout_id for a in first[:24]]
    assert all(a.task.split == "train" and a.step == 2 for a in first)


def test_a_task_that_a_step_has_tried_already_is_tried_under_another_name() -> None:
    experiment = build(composed(["taskset=jsonl", "num_tasks=2", "group_size=1"]))
    tried = {attempt.task.id for attempt in training_attempts(experiment, 0)}
    for number in range(1, 9):
        (more,) = further_attempts(experiment, 0, number, 1, tried)
        assert more.task.id not in tried
        tried.add(more.task.id)
    assert any(task_id.endswith("-x3") for task_id in tried)


def test_evaluation_takes_held_out_tasks_at_its_own_temperature(experiment: Experiment) -> None:
    options = replace(experiment.eval, num_tasks=5, rollouts=3, temperature=0.5)
    attempts = evaluation_attempts(replace(experiment, eval=options), step=3)
    assert len({a.rollout_id for a in attempts}) == len({a.seed for a in attempts}) == len(attempts) == 15
    assert all(attempt.task.split == "eval" and attempt.evaluation for attempt in attempts)
    assert {attempt.temperature for attempt in attempts} == {0.5}


def test_each_harness_is_scored_on_its_own_number_of_tasks_unless_the_experiment_says_otherwise() -> None:
    words = ["harness=[builtin,openclaw]", "eval.rollouts=1"]
    own = evaluation_attempts(build(composed(words)), step=0)
    assert Counter(a.harness_name for a in own) == {"builtin": 32, "openclaw": 4}
    given = evaluation_attempts(build(composed([*words, "eval.num_tasks=3"])), step=0)
    assert Counter(a.harness_name for a in given) == {"builtin": 3, "openclaw": 3}
    assert evaluation_attempts(build(composed([*words, "eval.num_tasks=0"])), step=0) == []


def test_a_seed_depends_on_all_that_names_the_draw_and_on_nothing_else() -> None:
    assert seed_of(0, 1, "t", "builtin", 2) == seed_of(0, 1, "t", "builtin", 2)
    assert len({seed_of(0, step, "t", "builtin", number) for step in range(9) for number in range(9)}) == 81
    assert 0 <= seed_of("x") < 2**63
