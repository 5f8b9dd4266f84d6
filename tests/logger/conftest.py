"""Rollouts to log."""

from collections.abc import Callable

import pytest

from clawexp.outcome import Outcome
from clawexp.records import Call, Rollout, Span


@pytest.fixture
def rollout() -> Callable[..., Rollout]:
    def make(number: int = 0, outcome: Outcome = Outcome.COMPLETED, reason: str = "") -> Rollout:
        call = Call(
            rollout_id=f"r{number}",
            call_id="c0",
            position=0,
            dialect="openai",
            kind="main",
            cause="root",
            parent=None,
            shared=0,
            prompt_ids=(1, 2),
            sampled_ids=(3, 4, 5),
            logprobs=(-0.1, -0.2, -0.3),
            spans=(Span(version=0, start=0, end=3),),
            finish_reason="stop",
            verdict="text",
            requested={},
            submitted={},
        )
        return Rollout(
            id=f"r{number}",
            task_id=f"lookup-train-0-0-{number}",
            harness="builtin",
            step=0,
            number=number,
            seed=number,
            outcome=outcome,
            reward=None if outcome is Outcome.HARNESS_FAULT else 0.5,
            calls=(call, call),
            reason=reason,
            times={"sandbox": 0.25, "harness": 1.5},
        )

    return make
