"""Trees -> a batch of `clawexp.batch`: tokens side by side, who owns them, and what their rollouts are worth."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from clawexp.batch import DTYPES, KINDS
from clawexp.errors import LearnerError
from clawexp.protocols import Normaliser
from clawexp.segment import Segment
from clawexp.tree import Tree


def pack(
    trees: Sequence[Tree],
    worth: Mapping[str, float],
    normaliser: Normaliser = "rollout",
    constant_tokens: int = 1,
) -> TensorDict:
    """Lay trees side by side. `worth` says of each valid rollout, by its id, what it is worth.

    A rollout that is not in it stays out of the loss and of the normaliser. With R valid rollouts of T_i trained
    tokens each, a token of rollout i weighs 1 / (R T_i) (`rollout`), 1 / sum_j T_j (`token`, as in DAPO) or
    1 / (R constant_tokens) (`constant`, as in Dr.GRPO). Raises LearnerError where a rollout is in two trees or in
    none, or a return is not finite.
    """
    rollouts = _rollouts(trees, worth)
    first = np.cumsum([0, *(len(tree.rollouts) for tree in trees)])
    valid = np.array([rollout in worth for rollout in rollouts], bool)
    tokens = np.concatenate([_trained_tokens(tree) for tree in trees] or [np.zeros(0)])
    columns: dict[str, list[NDArray]] = {key: [] for key in DTYPES}
    start = owned = 0
    for tree, rollout in zip(trees, first, strict=False):
        found = _columns(tree, start, int(rollout), valid) | _successors(tree, owned)
        for key, column in found.items():
            columns[key].append(column)
        start, owned = start + tree.num_tokens, owned + len(found["owners"])
    columns["owner_offsets"] = [np.cumsum(np.concatenate([[0], *columns["owner_offsets"]]))]
    columns["worth"] = [np.array([worth.get(rollout, 0.0) for rollout in rollouts])]
    columns["weight"] = [_weights(tokens, valid, normaliser, constant_tokens)]
    batch = {
        key: torch.from_numpy(np.concatenate(columns[key] or [np.zeros(0)])).to(dtype) for key, dtype in DTYPES.items()
    }
    return TensorDict(batch, batch_size=[])


def _rollouts(trees: Sequence[Tree], worth: Mapping[str, float]) -> list[str]:
    """Of all trees, in order."""
    rollouts = [rollout for tree in trees for rollout in tree.rollouts]
    if len(set(rollouts)) != len(rollouts):
        twice = sorted({rollout for rollout in rollouts if rollouts.count(rollout) > 1})
        raise LearnerError(f"rollouts {twice} are in two trees of one batch. Give each tree once.")
    if lost := sorted(set(worth) - set(rollouts)):
        raise LearnerError(f"rollouts {lost} have a return but no tree. Leave them out, or give their trees.")
    if wrong := [rollout for rollout in rollouts if not np.isfinite(worth.get(rollout, 0.0))]:
        raise LearnerError(f"the worth of rollouts {wrong} is not finite. Look at their rewards.")
    return rollouts


def _trained_tokens(tree: Tree) -> NDArray[np.int64]:
    """Of each rollout of a tree."""
    counts = np.zeros(len(tree.rollouts), np.int64)
    for segment in tree.segments:
        if segment.trained:
            counts[list(segment.owners)] += len(segment.ids)
    return counts


def _weights(
    tokens: NDArray, valid: NDArray[np.bool_], normaliser: Normaliser, constant_tokens: int
) -> NDArray[np.float64]:
    """Of one trained token of each rollout; 0 where the rollout is not valid or trains nothing."""
    if normaliser == "rollout":
        denominators = valid.sum() * tokens
    elif normaliser == "token":
        denominators = np.full(len(tokens), (tokens * valid).sum())
    else:
        denominators = np.full(len(tokens), valid.sum() * constant_tokens)
    return np.where(valid & (tokens > 0), 1.0 / np.maximum(denominators, 1), 0.0)


def _columns(tree: Tree, start: int, rollout: int, valid: NDArray[np.bool_]) -> dict[str, NDArray]:
    """One tree's part of the keys that tokens have (of `owner_offsets`, the number of owners of each token).

    Its first token has index `start` in the batch, its first rollout number `rollout`.
    """
    segments = tree.segments
    if not segments:
        return {"owners": np.zeros(0)}
    lengths = np.array([len(segment.ids) for segment in segments])
    above = np.array([segment.parent for segment in segments])
    firsts = start + np.cumsum(lengths) - lengths
    ends = np.array(tree.ends())
    index = np.arange(start, start + lengths.sum())
    parent = index - 1
    parent[firsts - start] = np.where(above < 0, -1, firsts[above] + lengths[above] - 1)
    owners = [np.array(segment.owners, np.int32) + rollout for segment in segments]
    decides = [s.trained and bool(valid[own].any()) for s, own in zip(segments, owners, strict=True)]
    return {
        "input_ids": np.concatenate([segment.ids for segment in segments]),
        "position": index - np.repeat(firsts - (ends - lengths), lengths),
        "parent": parent,
        "subtree_end": np.repeat(_subtree_ends(firsts + lengths, above), lengths),
        "sampled": np.repeat([segment.sampled for segment in segments], lengths),
        "decision": np.repeat(decides, lengths),
        "behaviour_logprob": _filled(segments, [segment.logprobs for segment in segments], 0),
        "version": _filled(segments, [segment.versions for segment in segments], -1),
        "kind": np.repeat([KINDS.index(segment.kind) for segment in segments], lengths),
        "owner_offsets": np.repeat([len(segment.owners) for segment in segments], lengths),
        "owners": np.concatenate([np.tile(own, length) for own, length in zip(owners, lengths, strict=True)]),
        "flat_tokens": _flat_tokens(tree, ends),
    }


def _successors(tree: Tree, owned: int) -> dict[str, NDArray]:
    """`successor` and `within` of one tree, whose first ownership has index `owned` in the batch."""
    below = _continuations(tree)
    sizes = [len(segment.ids) * len(segment.owners) for segment in tree.segments]
    firsts = owned + np.cumsum([0, *sizes])
    successors, withins = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    for index, (segment, size) in enumerate(zip(tree.segments, sizes, strict=True)):
        width = len(segment.owners)
        successor = np.arange(firsts[index], firsts[index] + size) + width
        within = np.full(size, segment.trained)
        for place, (owner, call) in enumerate(zip(segment.owners, segment.calls, strict=True)):
            at, last = below[index].get(owner), size - width + place
            after = tree.segments[at] if at is not None else None
            seat = after.owners.index(owner) if after is not None else 0
            successor[last] = -1 if at is None else firsts[at] + seat
            within[last] &= after is not None and after.calls[seat] == call
        successors.append(successor if segment.trained else np.full(size, -1))
        withins.append(within)
    return {"successor": np.concatenate(successors), "within": np.concatenate(withins)}


def _continuations(tree: Tree) -> list[dict[int, int]]:
    """For each segment, by owner: the next trained segment below it.

    Where there are several branches, that is of the owner's earliest call. Which call is the earliest does not depend
    on what comes after it, so the choice says nothing of how the rollout ends.
    """
    rank = [{call: place for place, call in enumerate(calls)} for calls in tree.calls]
    next_below: list[dict[int, tuple[int, int]]] = [{} for _ in tree.segments]
    for index in reversed(range(len(tree.segments))):
        segment, reached = tree.segments[index], next_below[index]
        if segment.trained:
            owned = zip(segment.owners, segment.calls, strict=True)
            reached = {owner: (rank[owner][call], index) for owner, call in owned}
        if segment.parent >= 0:
            above = next_below[segment.parent]
            above |= {owner: min(above.get(owner, found), found) for owner, found in reached.items()}
    return [{owner: index for owner, (_, index) in found.items()} for found in next_below]


def _subtree_ends(ends: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = ends.copy()
    for index in range(len(ends) - 1, -1, -1):
        if above[index] >= 0:
            ends[above[index]] = max(ends[above[index]], ends[index])
    return ends


def _filled(segments: Sequence[Segment], values: Sequence[NDArray], filler: int) -> NDArray:
    """The values of answers, and `filler` for every token of the environment."""
    parts = [
        value if segment.sampled else np.full(len(segment.ids), filler, value.dtype)
        for segment, value in zip(segments, values, strict=True)
    ]
    return np.concatenate(parts)


def _flat_tokens(tree: Tree, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per root: over the trained calls below it, the length of prompt and answer."""
    root = np.cumsum([segment.parent < 0 for segment in tree.segments]) - 1
    flat = np.zeros(root[-1] + 1, np.int64)
    for pieces in tree.answers().values():
        if tree.segments[pieces[-1]].trained:
            flat[root[pieces[-1]]] += ends[pieces[-1]]
    return flat
