"""The clipped objective that the algorithms share. Tensors are used through their methods only: no torch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Keeps exp finite; far outside of any clip."""


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
