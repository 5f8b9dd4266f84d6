"""What the algorithms share: the optimiser's numbers and the clipped objective.

Tensors are used through their methods only, so that a configuration is checked without torch.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from clawexp.component import component
from clawexp.protocols import Auxiliary, LeafFilter, Normaliser

if TYPE_CHECKING:
    from torch import Tensor

Decay = Annotated[float, Field(ge=0, lt=1)]
MAX_LOG_RATIO = 20.0
"""Keeps exp finite; far outside of any clip."""


@component
class Clipped:
    """An algorithm with a clipped objective per sampled token. What a rollout is worth is for each to say."""

    lr: Annotated[float, Field(gt=0)]
    betas: tuple[Decay, Decay]
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_steps: Annotated[int, Field(ge=0)]
    """Updates of the policy over which the learning rate rises to `lr`."""
    grad_clip: Annotated[float, Field(gt=0)]
    """Largest norm of the gradient."""
    clip_low: Annotated[float, Field(gt=0, lt=1)]
    clip_high: Annotated[float, Field(gt=0)]
    tis_cap: Annotated[float, Field(gt=0)]
    normaliser: Normaliser
    """See `clawexp.pack.pack`."""
    constant_tokens: Annotated[int, Field(ge=1)]
    min_group: Annotated[int, Field(ge=1)]
    """A group with fewer valid rollouts is left out."""
    auxiliary: Auxiliary
    leaf_filter: LeafFilter
    """See `clawexp.forest.prune`."""

    def loss(
        self,
        logprob: "Tensor",
        old_logprob: "Tensor",
        behaviour_logprob: "Tensor",
        positive: "Tensor",
        negative: "Tensor",
    ) -> "tuple[Tensor, dict[str, Tensor]]":
        """`clipped_loss`, summed over tokens, all [n]; P and N hold advantage and weight (`clawexp.batch`)."""
        logprobs, credit = (logprob, old_logprob, behaviour_logprob), (positive, negative)
        return clipped_loss(logprobs, credit, (self.clip_low, self.clip_high), self.tis_cap)


def clipped_loss(
    logprobs: "tuple[Tensor, Tensor, Tensor]",
    credit: "tuple[Tensor, Tensor]",
    clip: tuple[float, float],
    tis_cap: float,
) -> "tuple[Tensor, dict[str, Tensor]]":
    """Summed over tokens, all [n]; logprobs are those of pi, pi_old and pi_behaviour, credit is P and N:

        L = - sum_t w_t [min(r_t P_t, clip(r_t) P_t) + min(r_t N_t, clip(r_t) N_t)]
        r_t = pi / pi_old,  clip(r) = r within [1 - low, 1 + high]
        w_t = min(pi_old / pi_behaviour, tis_cap), without gradient

    as described in ClawGym II (arXiv:2608.16798): token-level truncated importance sampling. Also counts tokens:
    `clipped` lost the gradient of one sign, `truncated` had w above the cap.
    """
    logprob, old_logprob, behaviour_logprob = logprobs
    positive, negative = credit
    r = (logprob - old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    near = r.clamp(1 - clip[0], 1 + clip[1])
    w = (old_logprob - behaviour_logprob).detach().clamp(max=MAX_LOG_RATIO).exp()
    truncated = w > tis_cap
    w = w.clamp(max=tis_cap)
    objective = (r * positive).minimum(near * positive) + (r * negative).minimum(near * negative)
    clipped = (r > near) & (positive > 0) | (r < near) & (negative < 0)
    return -(w * objective).sum(), {"clipped": clipped.sum(), "truncated": truncated.sum()}
