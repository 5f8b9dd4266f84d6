"""A batch -> the parts in which it goes through a model: whole trees, or branches of one behind their ancestors."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.batch import DTYPES, NOT_PER_TOKEN, OPTIONAL, PER_OWNERSHIP, PER_ROLLOUT

CREDIT = ("positive", "negative", "share")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Neighbouring tokens of a batch, in order, as a batch of their own."""

    batch: TensorDict
    start: int
    """Where its own tokens begin in the whole batch."""
    repeated: int
    """Tokens in front of its own: ancestors, which are in an earlier part, too. Here they decide nothing."""

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
                yield from _cut(batch, first, bounds[first], bounds[tree + 1], cut_above)
            else:
                yield _whole(batch, first, tree + 1, bounds)
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


def _whole(batch: TensorDict, first: int, last: int, bounds: Sequence[int]) -> Part:
    """Trees `[first, last)`."""
    start, end = bounds[first], bounds[last]
    part: dict[str, Tensor] = {key: batch[key][start:end] for key in _per_token(batch)}
    part["parent"] = (part["parent"] - start).clamp(min=-1)
    part["subtree_end"] = part["subtree_end"] - start
    offsets = batch["owner_offsets"][start : end + 1]
    part |= {key: batch[key][int(offsets[0]) : int(offsets[-1])] for key in PER_OWNERSHIP}
    part["successor"] = (part["successor"] - offsets[0]).clamp(min=-1)
    part["owner_offsets"] = offsets - offsets[0]
    part |= {key: batch[key] for key in PER_ROLLOUT}
    part["flat_tokens"] = batch["flat_tokens"][first:last]
    return Part(batch=TensorDict(part, batch_size=[]), start=start, repeated=0)


def _cut(batch: TensorDict, tree: int, start: int, end: int, budget: int) -> Iterator[Part]:
    """The tree `[start, end)` in parts, each of which ends where a branch does."""
    inner = torch.arange(start + 1, end)
    branches = inner[batch["parent"][start + 1 : end] != inner - 1].tolist()
    depth = {branch: int(batch["position"][branch]) for branch in branches} | {start: 0}
    while start < end:
        room = start + budget - depth[start]
        stop = end if end <= room else _branch(branches, depth, start, room, end)
        yield _branches(batch, tree, start, stop)
        start = stop


def _branch(branches: Sequence[int], depth: dict[int, int], start: int, room: int, end: int) -> int:
    """Where the next part begins: of the branches in the later half of the room, the one that repeats least."""
    first, last = bisect_right(branches, start), bisect_right(branches, room)
    if last <= first:  # a single path is longer
        return branches[first] if first < len(branches) else end
    half = min(bisect_right(branches, (start + room) // 2), last - 1)
    return min(branches[max(first, half) : last], key=lambda branch: (depth[branch], -branch))


def _branches(batch: TensorDict, tree: int, start: int, stop: int) -> Part:
    """Tokens `[start, stop)` of one tree, behind the ancestors of the first, which are those of all others, too."""
    above = _ancestors(batch["parent"], start)
    repeated, kept = len(above), torch.cat([above, torch.arange(start, stop)])
    part: dict[str, Tensor] = {key: batch[key][kept] for key in _per_token(batch)}
    parent = part["parent"]
    # The ancestors are the path from the root, so that each stands at its depth.
    below = torch.where(parent >= start, parent - start + repeated, batch["position"][parent.clamp(min=0)])
    part["parent"] = torch.cat([torch.arange(-1, repeated - 1), below[repeated:]]) if repeated else below
    if not repeated:
        part["parent"][0] = -1
    part["subtree_end"] = part["subtree_end"].clamp(max=stop) - start + repeated
    part["decision"][:repeated] = False
    for key in CREDIT:
        if key in part:
            part[key][:repeated] = 0
    part |= _ownerships(batch, kept, repeated)
    part |= {key: batch[key] for key in PER_ROLLOUT}
    flat = batch["flat_tokens"][tree : tree + 1]
    part["flat_tokens"] = torch.zeros_like(flat) if repeated else flat
    return Part(batch=TensorDict(part, batch_size=[]), start=start, repeated=repeated)


def _ownerships(batch: TensorDict, kept: Tensor, repeated: int) -> dict[str, Tensor]:
    """Owners of these tokens. A successor that is in another part is none."""
    offsets = batch["owner_offsets"]
    counts = offsets.diff()[kept]
    ends = counts.cumsum(0)
    new_offsets = torch.cat([ends.new_zeros(1), ends])
    index = torch.arange(int(new_offsets[-1])) + (offsets[kept] - new_offsets[:-1]).repeat_interleave(counts)
    found = {key: batch[key][index] for key in PER_OWNERSHIP}
    inherited = int(new_offsets[repeated])
    first, last = int(offsets[kept[repeated]]), int(offsets[kept[-1] + 1])
    successor = found["successor"]
    inside = (successor >= first) & (successor < last)
    found["successor"] = torch.where(inside, successor - first + inherited, -1)
    found["successor"][:inherited] = -1
    found["within"][:inherited] = False
    return {**found, "owner_offsets": new_offsets}


def _ancestors(parent: Tensor, token: int) -> Tensor:
    """From the root on."""
    path = []
    while (token := int(parent[token])) >= 0:
        path.append(token)
    return torch.tensor(path[::-1], dtype=torch.int64)


def _per_token(batch: TensorDict) -> list[str]:
    return [key for key in DTYPES | OPTIONAL if key in batch and key not in NOT_PER_TOKEN]
