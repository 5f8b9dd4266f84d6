import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from clawexp.metrics import half_width, measure, measure_evaluation
from clawexp.outcome import Outcome
from clawexp.records import Call, Cause, Edit, ParseVerdict, Rollout, Span


def call(
    cause: Cause = "continue", verdict: ParseVerdict = "text", version: int = 5, engine_s: float = 0.5, sampled: int = 2
) -> Call:
    return Call(
        rollout_id="r",
        call_id="r/0",
        position=0,
        dialect="openai_chat",
        kind="main",
        cause=cause,
        parent=None,
        shared=0,
        prompt_ids=(1, 2, 3),
        sampled_ids=(4,) * sampled,
        logprobs=(-0.5,) * sampled,
        spans=(Span(version=version, start=0, end=sampled),),
        finish_reason="stop",
        verdict=verdict,
        requested={},
        submitted={},
        engine_s=engine_s,
    )


def rollout(
    name: str,
    reward: float | None = 1.0,
    outcome: Outcome = Outcome.COMPLETED,
    calls: Sequence[Call] = (),
    task: str = "t",
    harness: str = "builtin",
    times: dict[str, float] | None = None,
) -> Rollout:
    return Rollout(
        id=name,
        task_id=task,
        harness=harness,
        step=5,
        number=0,
        seed=0,
        outcome=outcome,
        reward=reward,
        calls=tuple(calls),
        times=times or {},
    )


def test_a_rollout_without_a_verdict_does_not_count_as_a_reward_of_nothing() -> None:
    lost = rollout("c", None, Outcome.GRADER_FAULT)
    values = measure([rollout("a", 1.0), rollout("b", 0.5), lost], {"a": 0.25, "b": -0.25})
    assert (values["reward/mean"], values["reward/solved"]) == (0.75, 0.5)
    assert values["reward/std"] == pytest.approx(math.sqrt(0.125))
    assert values["rollout/count"] == 3
    assert values["rollout/valid"] == 2
    assert {name: value for name, value in values.items() if name.startswith("outcome/")} == {
        "outcome/completed": 2.0,
        "outcome/grader_fault": 1.0,
    }


def test_a_step_of_nothing_but_faults_reports_no_reward_and_no_call() -> None:
    values = measure([rollout("a", None, Outcome.ENGINE_FAULT)], {})
    assert not any(name.startswith("reward/") for name in values)
    assert values["capture/calls"] == 0.0
    assert values["rollout/valid"] == 0
    assert values["rollout/groups_with_variance"] == 0.0


def test_calls_are_counted_by_what_became_of_them() -> None:
    calls = [call("root"), call(verdict="malformed"), call("compaction", "cut"), call(engine_s=1.5, sampled=6)]
    values = measure([rollout("a", calls=calls[:3]), rollout("b", calls=calls[3:])], {})
    assert values["capture/calls"] == 4.0
    assert values["capture/calls_per_rollout"] == 2.0
    assert values["capture/forks_per_1k_calls"] == values["capture/forks_per_1k_calls/compaction"] == 250.0
    assert not any(name.endswith(("/root", "/continue", "/retry")) for name in values)
    assert values["capture/malformed_share"] == values["capture/cut_share"] == 0.25
    assert values["capture/sampled_tokens"] == 12.0
    assert values["capture/prompt_tokens"] == 12.0
    assert values["engine/call_s"] == 0.75


def test_edits_are_counted_by_the_rule_that_made_them_and_no_others() -> None:
    names = ("rules.mine.clock", "rules.mine.log", "sampling.temperature", "rules.mine.clock")
    edits = [Edit(rule=name, before="a", after="b") for name in names]
    calls = [replace(call(), edits=tuple(edits[:1])), replace(call(), edits=tuple(edits[1:]))]
    values = measure([rollout("a", calls=calls)], {})
    counted = {name: value for name, value in values.items() if "rules" in name or "sampling" in name}
    assert counted == {"capture/rules.mine.clock": 2.0, "capture/rules.mine.log": 1.0}


def test_the_lag_is_that_of_the_oldest_weights_a_call_was_sampled_from() -> None:
    values = measure([rollout("a", calls=[call(version=5)]), rollout("b", calls=[call(version=3), call()])], {})
    assert values["engine/version_lag"] == 2.0
    assert measure([rollout("a", calls=[call(version=5)])], {})["engine/version_lag"] == 0.0


def test_only_groups_whose_rollouts_differ_teach_anything() -> None:
    equal = [rollout("a", 0.5, task="x"), rollout("b", 0.5, task="x")]
    different = [rollout("c", 0.5, task="y"), rollout("d", 1.0, task="y")]
    left_out = [rollout("e", 0.5, task="z"), rollout("f", 1.0, task="z")]
    values = measure([*equal, *different, *left_out], dict.fromkeys("abcde", 1.0))
    assert values["rollout/groups_with_variance"] == 1.0
    assert values["rollout/groups"] == 3.0


def test_stages_are_averaged_over_the_rollouts_that_came_so_far() -> None:
    values = measure([rollout("a", times={"harness": 1.0, "grade": 3.0}), rollout("b", times={"harness": 2.0})], {})
    assert (values["rollout/harness_s"], values["rollout/grade_s"]) == (1.5, 3.0)


def test_several_harnesses_are_told_apart_and_one_is_not_repeated() -> None:
    both = [rollout("a", 1.0), rollout("b", 0.0, harness="pi")]
    values = measure(both, {})
    assert (values["reward/mean/builtin"], values["reward/mean/pi"]) == (1.0, 0.0)
    assert not any(name.endswith("/builtin") for name in measure(both[:1], {}))


def test_an_evaluation_takes_tasks_for_its_samples() -> None:
    rollouts = [
        *(rollout(f"x{n}", reward, task="x") for n, reward in enumerate((1.0, 0.0))),
        *(rollout(f"y{n}", reward, task="y") for n, reward in enumerate((1.0, 1.0))),
        rollout("z", None, Outcome.HARNESS_FAULT, task="z"),
    ]
    values = measure_evaluation(rollouts)
    assert (values["eval/score"], values["eval/pass_at_1"]) == (0.75, 0.75)
    assert values["eval/score_ci95"] == pytest.approx(1.96 * math.sqrt(0.125) / math.sqrt(2))
    assert (values["eval/rollouts"], values["eval/without_verdict"]) == (5.0, 1.0)


def test_an_evaluation_without_any_verdict_claims_no_score() -> None:
    values = measure_evaluation([rollout("a", None, Outcome.ENGINE_FAULT)])
    assert values == {"eval/rollouts": 1.0, "eval/without_verdict": 1.0}


def test_the_same_task_under_two_harnesses_is_two_samples() -> None:
    values = measure_evaluation([rollout("a", 1.0), rollout("b", 0.0, harness="pi")])
    assert values["eval/score"] == 0.5
    assert not math.isnan(values["eval/score_ci95"])
    assert (values["eval/score/builtin"], values["eval/score/pi"]) == (1.0, 0.0)
    assert "eval/score/builtin" not in measure_evaluation([rollout("a", 1.0)])


def test_what_was_made_again_is_counted_by_why() -> None:
    values = measure([replace(rollout("a", 1.0), retried=(Outcome.ENGINE_FAULT, Outcome.ENGINE_FAULT))], {})
    assert (values["rollout/retried"], values["retried/engine_fault"]) == (2.0, 2.0)
    assert measure([rollout("b", 1.0)], {})["rollout/retried"] == 0.0


def test_an_interval_narrows_with_the_root_of_the_number_and_needs_two() -> None:
    assert math.isnan(half_width([1.0]))
    assert half_width([0.0, 1.0] * 50) == pytest.approx(half_width([0.0, 1.0] * 200) * 2, rel=0.02)
