"""What a run decides by itself; runs as a whole are in tests/test_experiment.py."""

import subprocess
import sys
from dataclasses import replace

import pytest
from sessions import call, rollout

from clawexp.commands.compose import build, composed
from clawexp.outcome import Credit, Outcome
from clawexp.records import Rollout
from clawexp.run import packed, probe_ids, returns_of
from clawexp.spec import Experiment
from clawexp.tree import grow


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
    assert returns_of(experiment, [good, lost, bad, mute, excluded]) == {"a": 1.0, "b": -1.0}


def test_the_table_of_outcomes_decides_who_is_trained_on(experiment: Experiment) -> None:
    rollouts = [ended("a", 1.0), ended("b", 0.0), ended("c", 0.0, Outcome.REWARD_HACK)]
    assert set(returns_of(experiment, rollouts)) == {"a", "b", "c"}
    without_hacks = replace_credit(experiment, Outcome.REWARD_HACK, Credit.EXCLUDE)
    assert set(returns_of(without_hacks, rollouts)) == {"a", "b"}


def replace_credit(experiment: Experiment, outcome: Outcome, credit: Credit) -> Experiment:
    return replace(experiment, outcome={**experiment.outcome, outcome: credit})


def test_a_group_with_too_few_valid_rollouts_is_left_out(experiment: Experiment) -> None:
    rollouts = [ended("a", 1.0), ended("b", 0.0), ended("c", 1.0, task="u"), ended("d", None, task="u")]
    assert set(returns_of(experiment, rollouts)) == {"a", "b"}


def test_only_what_is_trained_on_is_packed_and_groups_stay_apart(experiment: Experiment) -> None:
    rollouts = [ended("a", 1.0), ended("b", 0.0), ended("c", None, Outcome.GRADER_FAULT)]
    given = returns_of(experiment, rollouts)
    batch = packed(experiment, [grow(each) for each in rollouts], rollouts, given)
    assert len(batch["input_ids"]) == 4  # the two attempts share all their tokens
    assert int(batch["decision"].sum()) == 2


def test_a_step_without_anything_to_train_on_is_an_empty_batch(experiment: Experiment) -> None:
    rollouts = [ended("a", None, Outcome.ENGINE_FAULT)]
    batch = packed(experiment, [grow(each) for each in rollouts], rollouts, returns_of(experiment, rollouts))
    assert not batch["decision"].any()


def test_the_probe_stays_within_the_vocabulary_and_reaches_across_it() -> None:
    ids = probe_ids(4096)
    assert all(0 <= token < 4096 for token in ids)
    assert len(set(ids)) > 50
    assert max(ids) - min(ids) > 3000
    assert all(0 <= token < 3 for token in probe_ids(3))


STOPPABLE = """
import asyncio, signal
from clawexp.run import run_until_stopped
async def work():
    try:
        print('working', flush=True)
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0)
        print('closed', flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    run_until_stopped(work())
except KeyboardInterrupt:
    print('interrupted', flush=True)
"""


def test_sigterm_closes_what_is_alive_even_where_a_shell_made_the_run_deaf_to_ctrl_c() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPABLE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "working\n"
        process.terminate()
        rest, _ = process.communicate(timeout=60)
    assert rest.split() == ["closed", "interrupted"]
    assert process.returncode == 0
