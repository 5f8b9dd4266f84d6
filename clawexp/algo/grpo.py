"""Group-relative policy optimisation over prefix trees, as described in ClawGym II (arXiv:2608.16798).

Departures from its Tree-GRPO: a leave-one-out baseline and no scaling are on offer, and there is no reference
KL term. Tensors are used through their methods only, so that a configuration is checked without torch.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from clawexp.algo.clipped import clipped_loss
from clawexp.component import component
from clawexp.errors import LearnerError
from clawexp.forest import Auxiliary, LeafFilter

if TYPE_CHECKING:
    from torch import Tensor


@component
class Grpo:
    """One advantage per rollout, a clipped objective per sampled token."""

    lr: Annotated[float, Field(gt=0)]
    betas: tuple[float, float]
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_steps: Annotated[int, Field(ge=0)]
    """Updates over which the learning rate rises to `lr`."""
    grad_clip: Annotated[float, Field(gt=0)]
    """Largest norm of the gradient."""
    baseline: Literal["leave_one_out", "group_mean"]
    scale_by_std: bool
    std_floor: Annotated[float, Field(gt=0)]
    """Continuous rewards come arbitrarily close together; a smaller spread is not blown up."""
    clip_low: Annotated[float, Field(gt=0, lt=1)]
    clip_high: Annotated[float, Field(gt=0)]
    tis_cap: Annotated[float, Field(gt=0)]
    normaliser: Literal["rollout", "token", "constant"]
    """See `clawexp.pack.pack`."""
    constant_tokens: Annotated[int, Field(ge=1)]
    min_group: Annotated[int, Field(ge=1)]
    """A group with fewer valid rollouts is left out."""
    auxiliary: Auxiliary
    leaf_filter: LeafFilter
    """See `clawexp.forest.prune`."""
    recompute_old: bool
    """Score the batch in a pass of its own before the update, instead of in the update's own pass."""

    @property
    def critic(self) -> None:
        """A token's advantage is its rollout's return."""

    def returns(
        self, rewards: Sequence[float], groups: Sequence[tuple[str, str]], valid: Sequence[bool]
    ) -> list[float]:
        """One per rollout: A_i = R_i - mean_{j != i} R_j over the valid rollouts of its group.

        With `group_mean`, the mean includes R_i. With `scale_by_std`, divided by max(std, std_floor). 0 where
        a rollout is not valid, or its group has no second valid rollout or no spread. An invalid rollout's
        reward is never read. Raises LearnerError for a valid reward that is not finite.
        """
        members: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index, (group, is_valid) in enumerate(zip(groups, valid, strict=True)):
            if is_valid:
                members[group].append(index)
        returns = [0.0] * len(rewards)
        for group, indices in members.items():
            found = [rewards[index] for index in indices]
            if not all(map(math.isfinite, found)):
                raise LearnerError(f"task {group[0]} under {group[1]}: rewards {found} are not all finite.")
            for index, advantage in zip(indices, self._within(found), strict=True):
                returns[index] = advantage
        return returns

    def _within(self, rewards: Sequence[float]) -> list[float]:
        if len(rewards) < 2 or max(rewards) == min(rewards):
            return [0.0] * len(rewards)
        mean = fmean(rewards)
        # R - mean of the others = (R - mean of all) n / (n - 1)
        scale = len(rewards) / (len(rewards) - 1) if self.baseline == "leave_one_out" else 1.0
        if self.scale_by_std:
            scale /= max(stdev(rewards), self.std_floor)
        return [(reward - mean) * scale for reward in rewards]

    def loss(
        self,
        logprob: "Tensor",
        old_logprob: "Tensor",
        behaviour_logprob: "Tensor",
        positive: "Tensor",
        negative: "Tensor",
    ) -> "tuple[Tensor, dict[str, Tensor]]":
        """`clawexp.algo.clipped`, summed over tokens, all [n]; P and N hold advantage and weight (`clawexp.batch`)."""
        logprobs, credit = (logprob, old_logprob, behaviour_logprob), (positive, negative)
        return clipped_loss(logprobs, credit, (self.clip_low, self.clip_high), self.tis_cap)
