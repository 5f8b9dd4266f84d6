"""A batch -> what its tokens are worth to an update: old logprobs, advantages, which rollouts are left out."""

from dataclasses import dataclass
from typing import Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.batch import credited, over_rollouts, shared, with_columns
from clawexp.learner.critic import Critic, Decisions
from clawexp.learner.siblings import beside_siblings
from clawexp.protocols import Algo


class Scorer(Protocol):
    """Who scores the tokens of a batch that decide, in order."""

    def decision_logprobs(self, batch: TensorDict) -> Tensor:
        """Under the policy as it is now, [n]."""
        ...

    def decision_states(self, batch: TensorDict) -> tuple[Tensor, Tensor]:
        """The same, and the hidden states that they were read from, [n, hidden]."""
        ...

    def reference_logprobs(self, batch: TensorDict) -> Tensor:
        """Under the policy that the run began with, [n]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A batch before its first update."""

    batch: TensorDict
    advantage: Tensor
    """Of each ownership, [M]."""
    seen: Decisions | None
    """What the critic learns from."""
    metrics: dict[str, float]


def judged(batch: TensorDict, algo: Algo, critic: Critic | None, scorer: Scorer) -> Judged:
    """What stays as it is over all updates on a batch."""
    seen = None
    if algo.siblings == "none":
        advantage = batch["worth"][batch["owners"]]
    else:
        advantage = beside_siblings(batch, algo.siblings, algo.sibling_factor)
    if critic is not None:
        logprob, hidden = scorer.decision_states(batch)
        if "old_logprob" not in batch:
            batch = with_columns(batch, old_logprob=over_tokens(batch, logprob))
        found = critic.judge(batch, hidden)
        seen, advantage = found if len(hidden) else None, critic.advantages(batch, found)
    metrics: dict[str, float] = {}
    if algo.rejects:
        if "old_logprob" not in batch:
            batch = with_columns(batch, old_logprob=over_tokens(batch, scorer.decision_logprobs(batch)))
        batch, metrics["learner/rejected_share"] = _without_rejected(batch, algo)
    if algo.trains_all:
        batch = shared(batch)
    if algo.reference_kl:
        batch = with_columns(batch, reference_logprob=over_tokens(batch, scorer.reference_logprobs(batch)))
    return Judged(batch=batch, advantage=advantage, seen=seen, metrics=metrics)


def credited_now(batch: TensorDict, advantage: Tensor, algo: Algo, scorer: Scorer) -> TensorDict:
    """The batch with P and N of advantages [M], as the policy stands now."""
    if algo.sequence_ratio and "old_logprob" in batch:
        now = over_tokens(batch, scorer.decision_logprobs(batch))
        ratio = _mean_log_ratio(batch, now).exp()
        advantage = algo.clipped_advantage(advantage, ratio[batch["owners"]].to(advantage.dtype))
    return credited(batch, advantage)


def over_tokens(batch: TensorDict, logprob: Tensor) -> Tensor:
    """Of the decisions, in order -> of all tokens, [N] float32; 0 where nothing is decided."""
    column = torch.zeros(len(batch["input_ids"]))
    column[batch["decision"]] = logprob.to(column.dtype)
    return column


def _without_rejected(batch: TensorDict, algo: Algo) -> tuple[TensorDict, float]:
    """No weight for rollouts on which engine and learner differ too much; and their share of the valid ones."""
    log_ratio, rollout = over_rollouts(batch, batch["old_logprob"] - batch["behaviour_logprob"])
    keeps = algo.keeps(log_ratio, rollout, len(batch["weight"]))
    valid = batch["weight"] > 0
    rejected = (valid & ~keeps).sum() / valid.sum().clamp(min=1)
    return with_columns(batch, weight=batch["weight"] * keeps), rejected.item()


def _mean_log_ratio(batch: TensorDict, now: Tensor) -> Tensor:
    """Of each rollout's tokens against the old policy, each taken once, [R]."""
    log_ratio, rollout = over_rollouts(batch, now - batch["old_logprob"])
    zeros = log_ratio.new_zeros(len(batch["weight"]))
    count = zeros.index_add(0, rollout, torch.ones_like(log_ratio)).clamp(min=1)
    return zeros.index_add(0, rollout, log_ratio) / count
