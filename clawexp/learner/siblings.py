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
    rollouts that own token t, W(p) that of the valid ones that answered the prompt p of t's answer:

    - `anchor`, as in GiGPO (arXiv:2505.10978) without discount: A_i + factor [A_i - W(p)];
    - `tree`, as in TreeRL (arXiv:2506.11902): [W(t) + factor (W(t) - W(p))] / sqrt(rollouts that own t), the same
      for all of them. The worth of a group is 0 in the mean, so W(t) stands for its difference from the root.

    Where a rollout answered a prompt that no other did, both are A_i for an answer that no other gave.
    """
    token = owned_token(batch)
    worth, valid = batch["worth"][batch["owners"]], (batch["weight"] > 0)[batch["owners"]].double()
    owners = sum_over_owners(batch, valid).clamp(min=1)
    mean = sum_over_owners(batch, worth * valid) / owners
    starts = _starts(batch)
    before = _worth_of_prompts(batch, starts)[_prompt_end(batch, starts)]
    if mode == "anchor":
        return worth + factor * (worth - before[token])
    return ((mean + factor * (mean - before)) / owners.sqrt())[token]


def _starts(batch: TensorDict) -> Tensor:
    """[N] bool: the sampled tokens with which an answer begins."""
    goes_on = torch.zeros(len(batch["parent"]), dtype=torch.bool)
    goes_on[owned_token(batch)[batch["successor"][batch["within"]]]] = True
    return batch["sampled"] & ~goes_on


def _worth_of_prompts(batch: TensorDict, starts: Tensor) -> Tensor:
    """By the last token of a prompt: mean worth of the valid rollouts that answered it, each once, float64 [N]."""
    token = owned_token(batch)
    answers = starts[token] & (batch["weight"] > 0)[batch["owners"]]
    pairs = torch.stack([batch["parent"][token[answers]], batch["owners"][answers].long()], dim=1).unique(dim=0)
    total, count = torch.zeros(2, len(starts), dtype=torch.float64)
    total.index_add_(0, pairs[:, 0], batch["worth"][pairs[:, 1]])
    count.index_add_(0, pairs[:, 0], torch.ones(len(pairs), dtype=torch.float64))
    return total / count.clamp(min=1)


def _prompt_end(batch: TensorDict, starts: Tensor) -> Tensor:
    """For each token that was sampled, the last token of the prompt that its answer is to; itself for others, [N]."""
    parent = batch["parent"]
    end = torch.arange(len(parent))
    end[starts] = parent[starts]
    inner = (batch["sampled"] & ~starts).nonzero().flatten().tolist()
    found, above = end.tolist(), parent.tolist()
    for index in inner:  # a parent stands before its children
        found[index] = found[above[index]]
    return torch.tensor(found, dtype=torch.int64)
