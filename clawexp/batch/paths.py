"""A batch as flat samples and back: for trainers that know nothing of trees, and to hold trees against.

A batch of paths is a batch, too: each path from a root to a leaf is a tree of its own, so that tokens that paths share
are repeated. Of those, the first alone decides; so the loss and its gradient are those of the trees.
"""

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.batch import DTYPES, NOT_PER_TOKEN, OPTIONAL
from clawexp.errors import LearnerError

DECIDED = ("positive", "negative", "share", "old_logprob", "reference_logprob")
"""Columns that are 0 where nothing is decided."""


def to_paths(batch: TensorDict) -> TensorDict:
    """Every token in every path that holds it, path after path, [N'] in all; `token` says which it is in the batch.

    What is credited by prompts that rollouts share (`algo.siblings`) has to be credited before.
    """
    token, first, bounds = _written_out(batch)
    starts, ends = bounds[:-1], bounds[1:]
    index = torch.arange(len(token))
    flat = {key: batch[key][token] for key in (*DTYPES, *OPTIONAL) if key in batch and key not in NOT_PER_TOKEN}
    flat |= {key: flat[key] * first for key in DECIDED if key in flat}
    flat["token"] = token
    flat["decision"] = flat["decision"] & first
    flat["parent"] = (index - 1).index_fill(0, starts, -1)
    flat["subtree_end"] = ends.repeat_interleave(ends - starts)
    flat["flat_tokens"] = torch.zeros(len(starts), dtype=torch.int64)
    flat["flat_tokens"][first[starts]] = batch["flat_tokens"]
    return TensorDict({**flat, **_owned(batch, token, first), **_of_rollouts(batch)}, batch_size=[])


def from_paths(paths: TensorDict) -> TensorDict:
    """The batch that these are the paths of, to the bit. Raises LearnerError where `token` is not theirs."""
    if "token" not in paths:
        raise LearnerError("the batch has no `token`: nobody knows what its paths share. Make it with to_paths.")
    token = paths["token"]
    highest = torch.cat([torch.tensor([-1]), token]).cummax(0).values[:-1]
    first = token > highest
    kept = first.nonzero().flatten()
    if not torch.equal(token[kept], torch.arange(len(kept))):
        raise LearnerError("the tokens of these paths do not stand in the order that to_paths gives them.")
    batch = {key: paths[key][kept] for key in (*DTYPES, *OPTIONAL) if key in paths and key not in NOT_PER_TOKEN}
    del batch["token"]
    above = batch["parent"]
    batch["parent"] = torch.where(above < 0, above, token[above.clamp(min=0)])
    batch["subtree_end"] = _subtree_ends(batch["parent"])
    roots = paths["parent"] < 0
    batch["flat_tokens"] = torch.zeros(int((batch["parent"] < 0).sum()), dtype=torch.int64)
    batch["flat_tokens"].index_add_(0, first[roots].cumsum(0) - 1, paths["flat_tokens"])
    owned = _owned(paths, kept, torch.ones_like(kept, dtype=torch.bool))
    return TensorDict({**batch, **owned, **_of_rollouts(paths)}, batch_size=[])


def _written_out(batch: TensorDict) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of all paths, whether each stands there for the first time, and where paths begin and end."""
    depth, end = batch["position"].tolist(), batch["subtree_end"]
    leaves = (end == torch.arange(1, len(end) + 1)).nonzero().flatten().tolist()
    paths, fresh, start = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.bool)], 0
    for leaf in leaves:  # what is new stands between this leaf and the last one, the rest is as it was
        shared, own = paths[-1][: depth[start]], torch.arange(start, leaf + 1)
        paths.append(torch.cat([shared, own]))
        fresh.append(torch.arange(len(paths[-1])) >= len(shared))
        start = leaf + 1
    return torch.cat(paths), torch.cat(fresh), torch.tensor([len(path) for path in paths]).cumsum(0)


def _owned(batch: TensorDict, token: Tensor, first: Tensor) -> dict[str, Tensor]:
    """What the ownerships of these tokens are, some of which are repeated: then only the first has a successor."""
    offsets = batch["owner_offsets"]
    counts = offsets.diff()[token]
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    place = torch.arange(int(begins[-1])) - begins[:-1].repeat_interleave(counts)
    old = offsets[token].repeat_interleave(counts) + place
    is_first = first.repeat_interleave(counts)
    new = torch.full((len(batch["owners"]),), -1)
    new[old[is_first]] = is_first.nonzero().flatten()
    successor = batch["successor"][old]
    goes_on = is_first & (successor >= 0)
    return {
        "owner_offsets": begins,
        "owners": batch["owners"][old],
        "successor": torch.where(goes_on, new[successor.clamp(min=0)], -1),
        "within": batch["within"][old] & goes_on,
    }


def _of_rollouts(batch: TensorDict) -> dict[str, Tensor]:
    return {key: batch[key] for key in ("worth", "weight")}


def _subtree_ends(parent: Tensor) -> Tensor:
    """In depth-first order: behind the last token below each."""
    ends, above = list(range(1, len(parent) + 1)), parent.tolist()
    for index in reversed(range(len(ends))):
        if above[index] >= 0:
            ends[above[index]] = max(ends[above[index]], ends[index])
    return torch.tensor(ends, dtype=torch.int64)
