"""Group-relative policy optimisation over prefix trees, as described in ClawGym II (arXiv:2608.16798).

Departures from its Tree-GRPO: a leave-one-out baseline, no scaling and other objectives are on offer.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clawexp.algo.surrogate import Surrogate
from clawexp.component import component
from clawexp.errors import LearnerError
from clawexp.protocols import Siblings


@component
class Grpo(Surrogate):
    """One advantage per rollout, a surrogate objective over sampled tokens."""

    baseline: Literal["leave_one_out", "group_mean"]
    scale_by_std: bool
    siblings: Siblings
    sibling_factor: Annotated[float, Field(gt=0)]
    """See `clawexp.learner.siblings.beside_siblings`."""
    std_floor: Annotated[float, Field(gt=0)]
    """Continuous rewards come arbitrarily close together; a smaller spread is not blown up."""
    extra_rounds: Annotated[int, Field(ge=0)]
    """How often a step may try further tasks until it has its number of groups with spread; the others are left out."""
    recompute_old: bool
    """Score the batch in a pass of its own before the update, instead of in the update's own pass."""

    @model_validator(mode="after")
    def _compares(self) -> Self:
        if self.normaliser == "call" and self.baseline == "leave_one_out":
            raise ValueError(
                "normaliser=call takes calls for samples, and baseline=leave_one_out would leave out one call of a "
                "rollout and keep the others; choose baseline=group_mean"
            )
        if self.siblings != "none" and self.normaliser == "call":
            raise ValueError(
                f"siblings={self.siblings} compares rollouts in one tree, and with normaliser=call each has its own"
            )
        return self

    @property
    def critic(self) -> None:
        """A token's advantage is its rollout's return."""

    def worth(self, rewards: Sequence[float], groups: Sequence[tuple[str, str]], valid: Sequence[bool]) -> list[float]:
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
