"""How far engine and learner differ on the same sampled tokens."""

import torch
from torch import Tensor


def mismatch(behaviour: Tensor, logprob: Tensor) -> dict[str, float]:
    """How far the logprobs of engine and learner differ on the same sampled tokens, both [n].

    `kl_k3` estimates KL(behaviour || learner) as the mean of ratio - 1 - log ratio; `ess` is the effective
    sample size of untruncated importance weights as a share of n; `pearson` is of probabilities.
    """
    behaviour, logprob = behaviour.double(), logprob.double()
    delta = logprob - behaviour
    ratio, count = delta.exp(), len(delta)
    metrics = {
        "learner/kl_k3": divergence(behaviour, logprob),
        "learner/delta_logprob_mean": delta.abs().mean().item(),
        "learner/delta_logprob_p999": delta.abs().kthvalue(max(1, round(0.999 * count))).values.item(),
        "learner/ess": (ratio.sum().square() / (count * ratio.square().sum())).item(),
    }
    chances = torch.stack((behaviour.exp(), logprob.exp()))
    if count > 1 and bool((chances.std(1) > 0).all()):
        metrics["learner/pearson"] = chances.corrcoef()[0, 1].item()
    return metrics


def divergence(logprob: Tensor, other: Tensor) -> float:
    """KL(pi || other) by its estimate k3 on tokens that pi sampled, both [n]: mean of q - 1 - log q, q = other / pi."""
    log_q = other.double() - logprob.double()
    return (log_q.exp() - 1 - log_q).mean().item()
