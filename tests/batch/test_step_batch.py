from dataclasses import replace

import pytest
from made_rollouts import call, rollout

from clawexp.algo.grpo import Grpo
from clawexp.batch.step_batch import groups_with_spread, packed, worth_of
from clawexp.commands.compose import build, composed
from clawexp.outcome import Credit, Outcome
from clawexp.records import Rollout
from clawexp.spec import Experiment
from clawexp.tree.tree import grow


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return build(composed([]))


def ended(name: str, reward: float | None, outcome: Outcome = Outcome.COMPLETED, task: str = "t") -> Rollout:
    made = rollout([call(f"{name}/0", (1, 2), (3, 4), rollout_id=name)], name)
    return replace(made, reward=reward, outcome=outcome, task_id=task)


def test_a_rollout_without_a_verdict_or_without_calls_is_no_part_of_the_baseline(experiment: Experiment) -> None:
    good, bad = ended("a", 1.0), ended("b", 0.0)
    lost = ended("c", None, Outcome.GRADER_FAULT)
    mute = replace(ended("d", 1.0), calls=())
    excluded = ended("e", 1.0, Outcome.HARNESS_FAULT)
    assert worth_of(experiment, [good, lost, bad, mute, excluded]) == {"a": 1.0, "b": -1.0}


def test_the_table_of_outcomes_decides_who_is_trained_on(experiment: Experiment) -> None:
    rollouts = [ended("a", 1.0), ended("b", 0.0), ended("c", 0.0, Outcome.REWARD_HACK)]
    assert set(worth_of(experiment, rollouts)) == {"a", "b", "c"}
    without_hacks = replace_credit(experiment, Outcome.REWARD_HACK, Credit.EXCLUDE)
    assert set(worth_of(without_hacks, rollouts)) == {"a", "b"}


def replace_credit(experiment: Experiment, outcome: Outcome, credit: Credit) -> Experiment:
    return replace(experiment, outcome={**experiment.outcome, outcome: credit})


def test_a_group_with_too_few_valid_rollouts_is_left_out(experiment: Experiment) -> None:
    rollouts = [ended("a", 1.0), ended("b", 0.0), ended("c", 1.0, task="u"), ended("d", None, task="u")]
    assert set(worth_of(experiment, rollouts)) == {"a", "b"}


def test_groups_without_spread_are_left_out_where_a_step_may_try_further_tasks(experiment: Experiment) -> None:
    rollouts = [ended("a", 1.0), ended("b", 0.0), ended("c", 1.0, task="u"), ended("d", 1.0, task="u")]
    rollouts += [ended("e", 1.0, task="v"), ended("f", 0.0, Outcome.GRADER_FAULT, task="v")]
    assert groups_with_spread(experiment, rollouts) == {("t", "builtin")}
    assert set(worth_of(experiment, rollouts)) == {"a", "b", "c", "d"}
    assert isinstance(experiment.algo, Grpo)
    more = replace(experiment, algo=replace(experiment.algo, extra_rounds=1))
    assert worth_of(more, rollouts) == {"a": 1.0, "b": -1.0}


def test_only_what_is_trained_on_is_packed_and_groups_stay_apart(experiment: Experiment) -> None:
    rollouts = [ended("a", 1.0), ended("b", 0.0), ended("c", None, Outcome.GRADER_FAULT)]
    given = worth_of(experiment, rollouts)
    batch = packed(experiment, [grow(each) for each in rollouts], rollouts, given)
    assert len(batch["input_ids"]) == 4  # the two attempts share all their tokens
    assert int(batch["decision"].sum()) == 2


def test_a_step_without_anything_to_train_on_is_an_empty_batch(experiment: Experiment) -> None:
    rollouts = [ended("a", None, Outcome.ENGINE_FAULT)]
    batch = packed(experiment, [grow(each) for each in rollouts], rollouts, worth_of(experiment, rollouts))
    assert not batch["decision"].any()


def test_where_calls_are_samples_a_reward_counts_in_the_baseline_once_for_each(experiment: Experiment) -> None:
    long = rollout([call(f"a/{n}", (1, n), (3, 4), rollout_id="a") for n in range(3)], "a")
    # A retry of the first, whose answer was lost: it is no sample.
    again = replace(call("a/9", (1, 0), (5, 6), rollout_id="a"), cause="retry", position=9)
    long = replace(long, calls=(*long.calls, again))
    rollouts = [replace(long, reward=1.0, task_id="t"), ended("b", 0.0)]
    assert isinstance(experiment.algo, Grpo)
    algo = replace(experiment.algo, normaliser="call", baseline="group_mean")
    by_call = replace(experiment, algo=algo)
    worth = worth_of(by_call, rollouts)
    assert worth == pytest.approx({"a": 1 - 3 / 4, "b": -3 / 4})
    batch = packed(by_call, [grow(rollout) for rollout in rollouts], rollouts, worth)
    assert len(batch["flat_tokens"]) == 2
    assert batch["weight"].tolist() == pytest.approx([1 / 4, 1 / 4])
