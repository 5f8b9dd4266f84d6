"""A critic in training: values of a batch's decisions, and a head that learns from what came of them.

It reads the policy's hidden states where each token was chosen, noted in the pass that scores the batch, and gives the
policy no gradient: the policy moves by its own loss alone, and several updates of the head cost no further pass.
"""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.batch import owned_token, sum_over_owners
from clawexp.errors import LearnerError
from clawexp.model.value_head import ValueHead
from clawexp.protocols import CriticOptions


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What a critic learns from, one row for each token that decides, in order."""

    hidden: Tensor
    """Where the token was chosen: the policy's final hidden state at its parent, [n, hidden]."""
    value: Tensor
    """Before any update, [n]."""
    target: Tensor
    """Mean return of the valid rollouts that own the token, [n]: where they share a context, it has one value."""
    spread: Tensor
    """Variance of those returns, [n]: what no value of the context could explain."""
    weight: Tensor
    """Share of its ownerships in those of all decisions, [n]."""
    varied: bool
    """Whether not all returns are the same."""


class Critic:
    """A value head and its optimiser. `batches` counts those that it learned from.

    `best` is the largest share of a new batch's variance that it explained, `settled` whether there was one
    that was no better than all before it by `warmup_gain`.
    """

    def __init__(self, options: CriticOptions, hidden: int) -> None:
        self.options = options
        self.head = ValueHead(hidden, options.width)
        self.optimiser = torch.optim.AdamW(self.head.parameters(), lr=options.lr, weight_decay=0.0)
        self.batches, self.best, self.settled = 0, 0.0, False

    @property
    def warming(self) -> bool:
        """Whether the policy still has to wait."""
        options = self.options
        if self.batches < options.warmup_batches:
            return True
        return options.warmup_gain is not None and not self.settled and self.batches < options.warmup_limit

    def judge(self, batch: TensorDict, hidden: Tensor) -> Decisions:
        """Value each decision of a batch, whose hidden states are given, in order."""
        with torch.no_grad():
            value = self.head(hidden)
        valid = (batch["weight"] > 0)[batch["owners"]]
        returns = batch["worth"][batch["owners"]]
        visits, once, twice = (sum_over_owners(batch, valid * returns**power)[batch["decision"]] for power in range(3))
        target = once / visits
        heard = returns[valid & batch["decision"][owned_token(batch)]]
        return Decisions(
            hidden=hidden,
            value=value,
            target=target.to(value.dtype),
            spread=(twice / visits - target.square()).clamp(min=0),
            weight=(visits / visits.sum()).to(value.dtype),
            varied=bool((heard != heard[:1]).any()),
        )

    def advantages(self, batch: TensorDict, seen: Decisions) -> Tensor:
        """One for each ownership of a batch, [M]; of those that decide nothing it says nothing."""
        value = torch.zeros(len(batch["input_ids"]), dtype=torch.float64)
        value[batch["decision"]] = seen.value.double()
        value, returns = value[owned_token(batch)], batch["worth"][batch["owners"]]
        return self.options.advantages(returns, value, batch["successor"], batch["within"])

    def update(self, seen: Decisions) -> dict[str, float]:
        """Learn from a batch; metrics named `critic/...`, of the values before. Raises LearnerError."""
        metrics = {"critic/warming": float(self.warming), **quality(seen)}
        for _ in range(self.options.epochs):
            loss = self.options.loss(self.head(seen.hidden), seen.value, seen.target, seen.weight)
            if not loss.isfinite():
                raise LearnerError(
                    f"batch {self.batches + 1} of the critic: the loss of its values is {loss.item()}. "
                    "Look at the hidden states of the policy, and lower algo.critic.lr."
                )
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        self.batches += 1
        self._look(metrics.get("critic/explained_variance"))
        return metrics

    def _look(self, explained: float | None) -> None:
        """Whether it still learns to explain more, by a batch that it had not seen; None where nothing varied."""
        if explained is None or self.batches == 1:  # of the first batch a fresh head explains nothing
            return
        if self.batches >= self.options.warmup_batches and explained < self.best + (self.options.warmup_gain or 0.0):
            self.settled = True
        self.best = max(self.best, explained)

    def state(self) -> dict[str, Any]:
        """All that `take` needs."""
        return {
            "head": self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "batches": self.batches,
            "best": self.best,
            "settled": self.settled,
        }

    def take(self, state: dict[str, Any]) -> None:
        """Go on from a `state`, to the bit. Raises KeyError, ValueError or RuntimeError where it does not fit."""
        self.head.load_state_dict(state["head"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.batches, self.best, self.settled = state["batches"], state["best"], state["settled"]


def quality(seen: Decisions) -> dict[str, float]:
    """Of values V against returns R, every ownership alike. No explained variance where the returns do not vary.

    `explained_variance` is 1 - Var(R - V) / Var(R): 1 is perfect, 0 as good as a constant. Where rollouts share a token
    and differ in their returns, a part of the variance is beyond any value.
    """
    weight, target, value = seen.weight.double(), seen.target.double(), seen.value.double()
    error, beyond = target - value, (weight * seen.spread).sum()
    metrics = {
        "critic/value_mean": (weight * value).sum().item(),
        "critic/return_mean": (weight * target).sum().item(),
        "critic/value_loss": 0.5 * ((weight * error.square()).sum() + beyond).item(),
    }
    if seen.varied:
        left, whole = (_variance(each, weight) + beyond for each in (error, target))
        metrics["critic/explained_variance"] = 1 - (left / whole).item()
    return metrics


def _variance(values: Tensor, weight: Tensor) -> Tensor:
    return (weight * (values - (weight * values).sum()).square()).sum()
