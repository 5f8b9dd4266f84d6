"""What an answer is worth beside others to the same prompt, in trees where several rollouts of a group gave one.

Rollouts share a prompt to the token where nothing that their harness wrote differs: always at the first call, and
later where they did the same so far. What they answer there are real alternatives. Branches of one rollout are not:
its harness made them, and they end with one reward.
"""

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.batch import owned_token, sum_over_owners
from clawexp.protocols import Siblings


def beside_siblings(batch: TensorDict, mode: Siblings, factor: float) -> Tensor:
    """Advantages, one for each ownership, float64 [M]. A_i is the worth of rollout i, W(t) the mean worth of the valid
    rollouts that own token t, p(t) the last token of the prompt that t's answer is to:

    - `anchor`, as in GiGPO (arXiv:2505.10978) without discount: A_i + factor [A_i - W(p(t))];
    - `tree`, as in TreeRL (arXiv:2506.11902): [W(t) + factor (W(t) - W(p(t)))] / sqrt(rollouts that own t), the same
      for all of them. The worth of a group is 0 in the mean, so W(t) stands for its difference from the root.

    Of a rollout that shares none of its prompts, both are A_i.
    """
    token = owned_token(batch)
    worth, valid = batch["worth"][batch["owners"]], (batch["weight"] > 0)[batch["owners"]].double()
    owners = sum_over_owners(batch, valid).clamp(min=1)
    mean = sum_over_owners(batch, worth * valid) / owners
    before = mean[_prompt_end(batch)]
    if mode == "anchor":
        return worth + factor * (worth - before[token])
    return ((mean + factor * (mean - before)) / owners.sqrt())[token]


def _prompt_end(batch: TensorDict) -> Tensor:
    """For each token that was sampled, the last token of the prompt that its answer is to; itself for others, [N]."""
    parent = batch["parent"]
    goes_on = torch.zeros(len(parent), dtype=torch.bool)
    goes_on[owned_token(batch)[batch["within"]]] = True
    starts = batch["sampled"] & ~goes_on[parent.clamp(min=0)]
    end = torch.arange(len(parent))
    end[starts] = parent[starts]
    inner = (batch["sampled"] & ~starts).nonzero().flatten().tolist()
    found, above = end.tolist(), parent.tolist()
    for index in inner:  # a parent stands before its children
        found[index] = found[above[index]]
    return torch.tensor(found)
