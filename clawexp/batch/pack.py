"""Trees -> a batch of `clawexp.batch.batch`: tokens side by side, who owns them, and what their rollouts are worth."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from clawexp.batch.batch import DTYPES, KINDS
from clawexp.errors import LearnerError
from clawexp.protocols import Normaliser
from clawexp.tree.segment import Segment
from clawexp.tree.tree import Tree

TINY = np.finfo(np.float64).tiny


def pack(
    trees: Sequence[Tree],
    worth: Mapping[str, float],
    normaliser: Normaliser = "rollout",
    constant_tokens: int = 1,
    *,
    groups: Mapping[str, tuple[str, str]] | None = None,
    auxiliary_weight: float = 1.0,
) -> TensorDict:
    """Lay trees side by side. `worth` says of each valid rollout, by its id, what it is worth.

    A rollout that is not in it stays out of the loss and of the normaliser. With R valid rollouts of T_i trained
    tokens each, a token of rollout i weighs

    - 1 / (R T_i) (`rollout`: rollouts count alike),
    - 1 / (G sum_j T_j) over the rollouts j of its group, of G groups (`prompt`: groups count alike; `groups` names
      that of each valid rollout),
    - 1 / sum_j T_j over all (`token`, as in DAPO), or
    - 1 / (R constant_tokens) (`constant`, as in Dr.GRPO), or
    - 1 / (C t) in a call of t trained tokens, of C trained calls in all (`call`: each call is a sample of its own, so
      that rollouts of many calls count more; a tree holds one rollout then).

    A token of an auxiliary call weighs, and counts in T_i, `auxiliary_weight` as much. Raises LearnerError where a
    rollout is in two trees or in none, a return is not finite, a group is not named, or two rollouts share a tree whose
    calls count alike.
    """
    rollouts = _rollouts(trees, worth)
    first = np.cumsum([0, *(len(tree.rollouts) for tree in trees)])
    valid = np.array([rollout in worth for rollout in rollouts], bool)
    tokens = np.concatenate([_trained_tokens(tree, auxiliary_weight) for tree in trees] or [np.zeros(0)])
    columns: dict[str, list[NDArray]] = {key: [] for key in DTYPES}
    start = owned = 0
    for tree, rollout in zip(trees, first, strict=False):
        found = _columns(tree, start, int(rollout), valid) | _successors(tree, owned)
        for key, column in found.items():
            columns[key].append(column)
        start, owned = start + tree.num_tokens, owned + len(found["owners"])
    columns["owner_offsets"] = [np.cumsum(np.concatenate([[0], *columns["owner_offsets"]]))]
    columns["worth"] = [np.array([worth.get(rollout, 0.0) for rollout in rollouts])]
    if normaliser == "prompt":
        denominators = _tokens_by_group(tokens, valid, rollouts, groups or {})
    elif normaliser == "call":
        calls = np.array([_trained_calls(tree, auxiliary_weight) for tree in trees])
        denominators = np.full(len(tokens), (calls * valid).sum())
    else:
        denominators = _denominators(tokens, valid, normaliser, constant_tokens)
    columns["weight"] = [np.where(valid & (tokens > 0), 1.0 / np.maximum(denominators, TINY), 0.0)]
    batch = {
        key: torch.from_numpy(np.concatenate(columns[key] or [np.zeros(0)])).to(dtype) for key, dtype in DTYPES.items()
    }
    if auxiliary_weight != 1 or normaliser == "call":
        emphasis = [_emphasis(tree, auxiliary_weight, by_call=normaliser == "call") for tree in trees]
        batch["emphasis"] = torch.from_numpy(np.concatenate([*emphasis, np.zeros(0)])).float()
    if (experts := _experts([segment for tree in trees for segment in tree.segments])) is not None:
        batch["experts"] = torch.from_numpy(experts)
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


def _trained_tokens(tree: Tree, auxiliary_weight: float) -> NDArray[np.float64]:
    """Of each rollout of a tree; those of auxiliary calls count by their weight."""
    counts = np.zeros(len(tree.rollouts))
    for segment in tree.segments:
        if segment.trained:
            factor = auxiliary_weight if segment.kind == "auxiliary" else 1.0
            counts[list(segment.owners)] += factor * len(segment.ids)
    return counts


def _trained_calls(tree: Tree, auxiliary_weight: float) -> float:
    """Of a tree with one rollout; auxiliary ones count by their weight."""
    if len(tree.rollouts) != 1:
        raise LearnerError(f"rollouts {tree.rollouts} share a tree, and the normaliser is `call`. Give each its own.")
    kinds = {segment.calls: segment.kind for segment in tree.segments if segment.trained}
    return sum(auxiliary_weight if kind == "auxiliary" else 1.0 for kind in kinds.values())


def _emphasis(tree: Tree, auxiliary_weight: float, *, by_call: bool) -> NDArray[np.float64]:
    """Of each token of a tree: less in auxiliary calls, and by call divided by the trained tokens of its own."""
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for segment in tree.segments:
        counts[segment.calls] += len(segment.ids) if segment.trained else 0
    factors = [auxiliary_weight if segment.kind == "auxiliary" else 1.0 for segment in tree.segments]
    if by_call:
        factors = [f / max(1, counts[segment.calls]) for f, segment in zip(factors, tree.segments, strict=True)]
    return np.repeat(np.array(factors), [len(segment.ids) for segment in tree.segments])


def _experts(segments: Sequence[Segment]) -> NDArray[np.int16] | None:
    """Of all tokens; None where nothing is told of any."""
    shape = next((segment.experts.shape[1:] for segment in segments if segment.experts is not None), None)
    if shape is None:
        return None
    untold = [np.full((len(segment.ids), *shape), -1, np.int16) for segment in segments if segment.experts is None]
    parts = [untold.pop(0) if segment.experts is None else segment.experts for segment in segments]
    if strange := {part.shape[1:] for part in parts} - {shape}:
        raise LearnerError(f"experts of {shape} and of {strange} (layers, chosen) are of two models. Use those of one.")
    return np.concatenate(parts)


def _denominators(
    tokens: NDArray[np.float64], valid: NDArray[np.bool_], normaliser: Normaliser, constant_tokens: int
) -> NDArray[np.float64]:
    """By which a trained token of each rollout is divided."""
    if normaliser == "rollout":
        return valid.sum() * tokens
    total = (tokens * valid).sum() if normaliser == "token" else valid.sum() * constant_tokens
    return np.full(len(tokens), float(total))


def _tokens_by_group(
    tokens: NDArray[np.float64],
    valid: NDArray[np.bool_],
    rollouts: Sequence[str],
    groups: Mapping[str, tuple[str, str]],
) -> NDArray[np.float64]:
    """For each rollout, the tokens of its group, times the number of groups that train anything."""
    if lost := sorted({r for r, ok in zip(rollouts, valid, strict=True) if ok} - set(groups)):
        raise LearnerError(f"rollouts {lost} are of no group, and the normaliser is `prompt`. Name their groups.")
    totals: dict[tuple[str, str], float] = {}
    for rollout, count, ok in zip(rollouts, tokens, valid, strict=True):
        if ok and count:
            totals[groups[rollout]] = totals.get(groups[rollout], 0.0) + count
    found = [totals.get(groups[r], 0.0) if ok else 0.0 for r, ok in zip(rollouts, valid, strict=True)]
    return len(totals) * np.array(found)


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
