"""What is done about an engine that samples with other chances than the learner computes.

The weight of a token is that of truncated importance sampling, w = min(pi_old / pi_behaviour, tis_cap), as described
in ClawGym II (arXiv:2608.16798); with a band, a token whose ratio lies outside of it weighs nothing (IcePop). Rollouts
are left out as wholes where one number over all their sampled tokens, each taken once, lies outside of bounds:

- `sequence`: the product of the ratios, which long rollouts rarely keep near 1;
- `geometric`: its n-th root for n tokens;
- `k3`: the mean of ratio - 1 - log ratio, an estimate of KL(pi_behaviour || pi_old), 0 where they agree.

A veto leaves out a rollout with a single token whose ratio is below it: the learner finds next to impossible what the
engine did. A rollout that is left out keeps its place in the baseline and in the normaliser: its reward is right.
Tensors are used through their methods only, so that a configuration is checked without torch.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Reject = Literal["sequence", "geometric", "k3"]
MAX_LOG_RATIO = 20.0
"""Keeps exp finite; far outside of any bound."""


def token_weight(
    log_ratio: "Tensor", tis_cap: float, token_band: tuple[float, float] | None
) -> "tuple[Tensor, dict[str, Tensor]]":
    """w of each token, without gradient, and how many were `truncated` or `masked`. log pi_old - log pi_behaviour."""
    ratio = log_ratio.detach().clamp(max=MAX_LOG_RATIO).exp()
    w = ratio.clamp(max=tis_cap)
    counts = {"truncated": (ratio > tis_cap).sum()}
    if token_band is not None:
        outside = (ratio < token_band[0]) | (ratio > token_band[1])
        w, counts["masked"] = w.masked_fill(outside, 0.0), outside.sum()
    return w, counts


def keeps(
    tokens: "tuple[Tensor, Tensor, int]", reject: Reject | None, within: tuple[float, float], veto: float | None
) -> "Tensor":
    """Which of R rollouts are kept, bool [R].

    `tokens`: log pi_old - log pi_behaviour [n], the rollout that each is of, int64 [n], and R. A rollout without tokens
    is kept.
    """
    log_ratio, rollout, num_rollouts = tokens
    log_ratio = log_ratio.double()  # k3 is a difference of numbers that nearly agree
    zeros = log_ratio.new_zeros(num_rollouts)
    kept = zeros == 0
    if veto is not None:
        smallest = zeros.scatter_reduce(0, rollout, log_ratio, "amin")
        kept &= smallest.exp() >= veto
    if reject is not None:
        each = log_ratio
        if reject == "k3":
            each = (log_ratio.clamp(max=MAX_LOG_RATIO).exp() - 1 - log_ratio).clamp(min=0)
        total = zeros.index_add(0, rollout, each)
        if reject != "sequence":
            total = total / zeros.index_add(0, rollout, (log_ratio == log_ratio).to(zeros.dtype)).clamp(min=1)
        found = total if reject == "k3" else total.exp()
        kept &= (found >= within[0]) & (found <= within[1])
    return kept
