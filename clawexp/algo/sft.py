"""Supervised learning of what was sampled before: cross-entropy on the recorded tokens of earlier runs.

Tensors are used through their methods only, so that a configuration is checked without torch.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from clawexp.algo.surrogate import Decay
from clawexp.component import component
from clawexp.errors import LearnerError
from clawexp.protocols import Auxiliary, LeafFilter

if TYPE_CHECKING:
    from torch import Tensor


@component
class Sft:
    """Imitation of rollouts that went well. It makes no rollouts of its own."""

    runs: tuple[str, ...]
    """Folders of the runs that are imitated, at least one."""
    min_reward: float
    """Of a rollout that is."""
    held_out: Annotated[float, Field(ge=0, lt=1)]
    """Share of the tasks that are not trained on."""
    batch_rollouts: Annotated[int, Field(ge=1)]
    """A step."""
    lr: Annotated[float, Field(gt=0)]
    betas: tuple[Decay, Decay]
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_steps: Annotated[int, Field(ge=0)]
    """Updates over which the learning rate rises to `lr`."""
    grad_clip: Annotated[float, Field(gt=0)]
    """Largest norm of the gradient."""
    normaliser: Literal["rollout", "prompt", "token"]
    """See `clawexp.batch.pack.pack`."""
    auxiliary: Auxiliary
    leaf_filter: LeafFilter
    """See `clawexp.tree.forest.prune`."""

    @field_validator("runs")
    @classmethod
    def _named(cls, runs: tuple[str, ...]) -> tuple[str, ...]:
        if not runs:
            raise ValueError(
                "no run is named; give folders of earlier ones, as in 'algo.runs=[runs/2026-01-31/120000]'"
            )
        return runs

    @property
    def constant_tokens(self) -> int:
        """Of a normaliser that is no choice here."""
        return 1

    @property
    def min_group(self) -> int:
        """A rollout is imitated alone."""
        return 1

    @property
    def siblings(self) -> Literal["none"]:
        return "none"

    @property
    def sibling_factor(self) -> float:
        return 1.0

    @property
    def extra_rounds(self) -> int:
        return 0

    @property
    def updates(self) -> int:
        return 1

    @property
    def recompute_old(self) -> bool:
        """The loss has no ratio."""
        return False

    @property
    def reference_kl(self) -> float:
        return 0.0

    @property
    def trains_all(self) -> bool:
        return False

    @property
    def rejects(self) -> bool:
        return False

    @property
    def sequence_ratio(self) -> bool:
        return False

    @property
    def critic(self) -> None:
        """There is nothing to judge."""

    def worth(self, rewards: Sequence[float], groups: Sequence[tuple[str, str]], valid: Sequence[bool]) -> list[float]:
        """1 of each rollout that is imitated, 0 of one that is not valid or whose reward is too low.

        Raises LearnerError for a valid reward that is not finite.
        """
        for reward, group, is_valid in zip(rewards, groups, valid, strict=True):
            if is_valid and not math.isfinite(reward):
                raise LearnerError(f"task {group[0]} under {group[1]}: the reward is {reward}.")
        return [float(ok and reward >= self.min_reward) for reward, ok in zip(rewards, valid, strict=True)]

    def keeps(self, log_ratio: "Tensor", rollout: "Tensor", num_rollouts: int) -> "Tensor":
        """All rollouts, whoever sampled them."""
        return log_ratio.new_ones(num_rollouts).bool()

    def clipped_advantage(self, advantage: "Tensor", ratio: "Tensor") -> "Tensor":
        """Unclipped: the distance to whoever sampled them is what shall change."""
        return advantage

    def loss(
        self,
        logprob: "Tensor",
        old_logprob: "Tensor",
        behaviour_logprob: "Tensor",
        positive: "Tensor",
        negative: "Tensor",
        share: "Tensor | None" = None,
        reference_logprob: "Tensor | None" = None,
    ) -> "tuple[Tensor, dict[str, Tensor]]":
        """L = - sum_t P_t log pi_t, all [n]; P holds the weight of a token (`clawexp.batch`). Counts nothing."""
        return -(positive * logprob).sum(), {}
