"""Judged by numbers that are given, without a policy."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from made_rollouts import call, rollout
from tensordict import TensorDict

from clawexp.algo.grpo import Grpo
from clawexp.batch.batch import validate, with_columns
from clawexp.batch.pack import pack
from clawexp.learner.judgement import credited_now, judged
from clawexp.tree.forest import merge
from clawexp.tree.tree import grow

OPTION = Path(__file__).parents[2] / "conf" / "algo" / "grpo.yaml"


def grpo(**other: Any) -> Grpo:
    fields = yaml.safe_load(OPTION.read_text())
    del fields["_target_"]
    return Grpo(**fields | other)


class Given:
    """Says of each decision what it was told; `asked` for what, in order."""

    def __init__(self, now: list[float], reference: list[float] | None = None) -> None:
        self.now, self.reference = torch.tensor(now), torch.tensor(reference or [])
        self.asked: list[str] = []

    def decision_logprobs(self, batch: TensorDict) -> torch.Tensor:
        self.asked.append("now")
        return self.now

    def decision_states(self, batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("there is no critic")

    def reference_logprobs(self, batch: TensorDict) -> torch.Tensor:
        self.asked.append("reference")
        return self.reference


def two_of_one_beginning() -> TensorDict:
    """Two rollouts that share the first of their tokens: 0 is of both, 1 of the first, 2 and 3 of the second."""
    one = rollout([call("c", [1], [2, 3], logprobs=(-1.0, -1.0))], "r0")
    other = rollout([call("c", [1], [2, 4, 5], logprobs=(-1.0, -1.0, -1.0))], "r1")
    return pack([merge([grow(one), grow(other)])], {"r0": 1.0, "r1": -1.0})


def columns(batch: TensorDict, key: str) -> list[float]:
    return batch[key][batch["decision"]].tolist()


def test_what_nobody_asks_for_is_not_computed():
    scorer = Given([])
    found = judged(two_of_one_beginning(), grpo(), None, scorer)
    assert found.advantage.tolist() == [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0]
    assert not {"old_logprob", "share", "reference_logprob"} & set(found.batch.keys())
    credited = credited_now(found.batch, found.advantage, grpo(), scorer)
    assert columns(credited, "positive") == pytest.approx([1 / 4, 1 / 4, 0, 0])
    assert columns(credited, "negative") == pytest.approx([-1 / 6, 0, -1 / 6, -1 / 6])
    assert scorer.asked == []


def test_a_rollout_that_is_left_out_trains_nothing_and_keeps_its_place():
    algo, scorer = grpo(veto=1e-3), Given([-1.0, -1.0, -1.0, -9.0])
    found = judged(two_of_one_beginning(), algo, None, scorer)
    assert found.metrics == {"learner/rejected_share": 0.5}
    credited = credited_now(found.batch, found.advantage, algo, scorer)
    assert columns(credited, "positive") == pytest.approx([1 / 4, 1 / 4, 0, 0])
    assert columns(credited, "negative") == [0, 0, 0, 0]
    assert columns(credited, "old_logprob") == [-1.0, -1.0, -1.0, -9.0]


def test_with_a_reference_every_decision_carries_loss_by_its_weight():
    algo, scorer = grpo(reference_kl=0.1), Given([], [-2.0, -3.0, -4.0, -5.0])
    found = judged(two_of_one_beginning(), algo, None, scorer)
    validate(found.batch)
    assert columns(found.batch, "share") == pytest.approx([1 / 4 + 1 / 6, 1 / 4, 1 / 6, 1 / 6])
    assert columns(found.batch, "reference_logprob") == [-2.0, -3.0, -4.0, -5.0]
    assert scorer.asked == ["reference"]


def test_the_ratio_of_a_rollout_is_over_its_tokens_once_and_clipped_for_each_owner_alone():
    algo = grpo(objective="gspo", clip_low=0.5, clip_high=0.1)
    batch = two_of_one_beginning()
    old = torch.zeros(len(batch["input_ids"]))
    old[batch["decision"]] = -1.0
    batch = with_columns(batch, old_logprob=old)
    advantage = batch["worth"][batch["owners"]]
    credited = credited_now(batch, advantage, algo, Given([-1.0, -0.6, -1.3, -1.3]))
    # r0: exp(0.4 / 2) is above 1.1, and its advantage positive: clipped. r1: exp(-0.6 / 3).
    ratio = torch.tensor(-0.2).exp().item()
    assert columns(credited, "positive") == [0, 0, 0, 0]
    assert columns(credited, "negative") == pytest.approx([-ratio / 6, 0, -ratio / 6, -ratio / 6])
    same = credited_now(batch, advantage, algo, Given([-1.0] * 4))
    assert columns(same, "positive") == pytest.approx([1 / 4, 1 / 4, 0, 0])
