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

from clawexp.component import component
from clawexp.errors import LearnerError
from clawexp.forest import Auxiliary, LeafFilter

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Keeps exp finite; far outside of any clip."""


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
    """See `clawexp.batch.pack`."""
    constant_tokens: Annotated[int, Field(ge=1)]
    auxiliary: Auxiliary
    leaf_filter: LeafFilter
    """See `clawexp.forest.prune`."""
    recompute_old: bool
    """Score the batch in a pass of its own before the update, instead of in the update's own pass."""

    def advantages(
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
        advantages = [0.0] * len(rewards)
        for group, indices in members.items():
            found = [rewards[index] for index in indices]
            if not all(map(math.isfinite, found)):
                raise LearnerError(f"task {group[0]} under {group[1]}: rewards {found} are not all finite.")
            for index, advantage in zip(indices, self._within(found), strict=True):
                advantages[index] = advantage
        return advantages

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
        """Summed over tokens, all [n]; P and N hold advantage and normaliser (see `clawexp.batch`):

            L = - sum_t w_t [min(r_t P_t, clip(r_t) P_t) + min(r_t N_t, clip(r_t) N_t)]
            r_t = pi / pi_old,  clip(r) = r within [1 - clip_low, 1 + clip_high]
            w_t = min(pi_old / pi_behaviour, tis_cap), without gradient

        as described in ClawGym II (arXiv:2608.16798): Tree-GRPO, token-level truncated importance sampling.
        Also counts tokens: `clipped` lost the gradient of one sign, `truncated` had w above the cap.
        """
        r = (logprob - old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        clip = r.clamp(1 - self.clip_low, 1 + self.clip_high)
        w = (old_logprob - behaviour_logprob).detach().clamp(max=MAX_LOG_RATIO).exp()
        truncated = w > self.tis_cap
        w = w.clamp(max=self.tis_cap)
        objective = (r * positive).minimum(clip * positive) + (r * negative).minimum(clip * negative)
        clipped = (r > clip) & (positive > 0) | (r < clip) & (negative < 0)
        return -(w * objective).sum(), {"clipped": clipped.sum(), "truncated": truncated.sum()}
