"""A batch -> the parts in which it goes through a model: whole trees, or branches of one behind their ancestors."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.batch import DTYPES, NOT_PER_TOKEN, OPTIONAL


@dataclass(frozen=True, kw_only=True)
class Part:
    """Neighbouring tokens of a batch, in order."""

    batch: TensorDict
    """What a batch has of each token."""
    start: int
    """Where its own tokens begin in the whole batch."""
    repeated: int
    """Tokens in front of its own: ancestors, which are in an earlier part, too, and are no targets here."""

    @property
    def tokens(self) -> int:
        """All that pass through the model."""
        return len(self.batch["input_ids"])

    def targets(self, mask: Tensor) -> Tensor:
        """Indices, in this part, of its own tokens in a mask [N] over the whole batch."""
        end = self.start + self.tokens - self.repeated
        return mask[self.start : end].nonzero().flatten() + self.repeated


def split(batch: TensorDict, token_budget: int, cut_above: int | None = None) -> Iterator[Part]:
    """Neighbouring whole trees, at most `token_budget` tokens together (views); a larger tree comes alone.

    One of more than `cut_above` tokens is cut, between branches, into parts of at most so many. Each repeats the
    ancestors of its branches, so that logprobs, and the sum of the parts' gradients, are those of the whole. Only a
    single path that is longer than that remains so.
    """
    assert cut_above is None or token_budget <= cut_above
    roots = (batch["parent"] < 0).nonzero().flatten().tolist()
    bounds = [*roots, len(batch["parent"])]
    first = 0
    for tree in range(len(roots)):
        if bounds[min(tree + 2, len(roots))] - bounds[first] > token_budget or tree + 1 == len(roots):
            if cut_above is not None and bounds[tree + 1] - bounds[first] > cut_above:
                yield from _cut(batch, bounds[first], bounds[tree + 1], cut_above)
            else:
                yield _part(batch, bounds[first], bounds[tree + 1], torch.zeros(0, dtype=torch.int64))
            first = tree + 1


def best_fit(sizes: Sequence[int], token_budget: int) -> list[int]:
    """The order of trees of these sizes in which `split` makes few parts: the largest first, each into the fullest part
    that has room. The order that they have, where all fit into one.
    """
    if sum(sizes) <= token_budget:
        return list(range(len(sizes)))
    parts: list[list[int]] = []
    filled: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        room = [number for number, size in enumerate(filled) if size + sizes[index] <= token_budget]
        if not room:
            parts.append([])
            filled.append(0)
        number = max(room, key=lambda number: filled[number]) if room else len(parts) - 1
        parts[number].append(index)
        filled[number] += sizes[index]
    return [index for part in parts for index in part]


def _cut(batch: TensorDict, start: int, end: int, budget: int) -> Iterator[Part]:
    """The tree `[start, end)` in parts, each of which ends where a branch does."""
    inner = torch.arange(start + 1, end)
    branches = inner[batch["parent"][start + 1 : end] != inner - 1].tolist()
    depth = {branch: int(batch["position"][branch]) for branch in branches} | {start: 0}
    while start < end:
        room = start + budget - depth[start]
        stop = end if end <= room else _branch(branches, depth, start, room, end)
        yield _part(batch, start, stop, _ancestors(batch["parent"], start))
        start = stop


def _branch(branches: Sequence[int], depth: dict[int, int], start: int, room: int, end: int) -> int:
    """Where the next part begins: of the branches in the later half of the room, the one that repeats least."""
    first, last = bisect_right(branches, start), bisect_right(branches, room)
    if last <= first:  # a single path is longer
        return branches[first] if first < len(branches) else end
    half = min(bisect_right(branches, (start + room) // 2), last - 1)
    return min(branches[max(first, half) : last], key=lambda branch: (depth[branch], -branch))


def _part(batch: TensorDict, start: int, stop: int, above: Tensor) -> Part:
    """Tokens `[start, stop)` behind these ancestors, which are those of all of them."""
    part: dict[str, Tensor] = {}
    for key in (*DTYPES, *OPTIONAL):
        if key in batch and key not in NOT_PER_TOKEN:
            own = batch[key][start:stop]
            part[key] = torch.cat([batch[key][above], own]) if len(above) else own
    parent, repeated = part["parent"], len(above)
    # The ancestors are the path from the root, so that each stands at its depth.
    inherited = torch.where(parent < 0, parent, batch["position"][parent.clamp(min=0)])
    part["parent"] = torch.where(parent >= start, parent - start + repeated, inherited)
    part["subtree_end"] = part["subtree_end"].clamp(max=stop) - start + repeated
    return Part(batch=TensorDict(part, batch_size=[]), start=start, repeated=repeated)


def _ancestors(parent: Tensor, token: int) -> Tensor:
    """From the root on."""
    path = []
    while (token := int(parent[token])) >= 0:
        path.append(token)
    return torch.tensor(path[::-1], dtype=torch.int64)
