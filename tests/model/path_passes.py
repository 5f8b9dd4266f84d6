"""Random packed trees, and the passes of transformers over each of their paths that a pass over trees must equal."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from clawexp.model.tree_pass import TreeTokens

TEMPERATURE = 0.8


def forest(seed: int) -> TreeTokens:
    """Three random trees with branches upon branches, single tokens and a bare chain among them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    parent: list[int] = []

    def grow(above: int, depth: int) -> None:
        for _ in range(draw(1, 12)):
            parent.append(above)
            above = len(parent) - 1
        for _ in range(draw(2, 4) if depth else 0):
            grow(above, depth - 1)

    for depth in (3, 0, 2):
        grow(-1, depth)
    ids = torch.randint(0, 97, (len(parent),), generator=generator).tolist()
    return tree(ids, parent)


def tree(ids: list[int], parent: list[int]) -> TreeTokens:
    position: list[int] = []
    for above in parent:
        position.append(position[above] + 1 if above >= 0 else 0)
    return TreeTokens(torch.tensor(ids), torch.tensor(position), torch.tensor(parent))


def all_but_roots(tokens: TreeTokens) -> Tensor:
    return (tokens.parent >= 0).nonzero()[:, 0]


def mixed_signs(seed: int) -> Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(seed))


def weighted(weights: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss that is not linear in the logprobs, so that each token's own value matters."""
    return lambda logprobs, which: (weights[which].to(logprobs.dtype) * (0.3 * logprobs).exp()).sum()


def per_path(model: PreTrainedModel, tokens: TreeTokens, targets: Tensor, weights: Tensor) -> Tensor:
    """The same by transformers: one pass for each path from root to leaf, its gradients left in the model."""
    logprobs = torch.empty(len(targets), dtype=model.dtype)
    todo = {target: which for which, target in enumerate(targets.tolist())}
    leaves = set(range(len(tokens.parent))) - set(tokens.parent.tolist())
    for leaf in sorted(leaves):
        path = [leaf]
        while int(tokens.parent[path[0]]) >= 0:
            path.insert(0, int(tokens.parent[path[0]]))
        mine = [(place, todo.pop(token)) for place, token in enumerate(path) if token in todo]
        if not mine:
            continue
        place, which = torch.tensor(mine).T
        ids = tokens.input_ids[path]
        rows = (model(ids[None]).logits[0, place - 1] / TEMPERATURE).log_softmax(-1)
        found = rows.gather(1, ids[place, None])[:, 0]
        weighted(weights)(found, which).backward()
        logprobs[which] = found.detach()
    return logprobs
