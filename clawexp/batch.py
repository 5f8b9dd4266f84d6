"""Trees -> a TensorDict of packed trees, and the batch's own rules.

N tokens stand in depth-first order, tree after tree: K trees, one root token each, M ownerships.

| key | dtype | shape | is |
|---|---|---|---|
| `input_ids` | int64 | [N] | token ids |
| `position` | int64 | [N] | depth, 0 at a root |
| `parent` | int64 | [N] | index of the token before it on its path; -1 at a root |
| `subtree_end` | int64 | [N] | key k is visible to query q iff k <= q < subtree_end[k] |
| `sampled` | bool | [N] | the policy wrote it |
| `behaviour_logprob` | float32 | [N] | under the distribution that it was sampled from; 0 where not sampled |
| `version` | int32 | [N] | of the weights that it was sampled from; -1 where not sampled |
| `kind` | int8 | [N] | index into KINDS, of the call that brought it |
| `positive` | float32 | [N] | P >= 0, sum of weight x advantage over its owners with a positive advantage |
| `negative` | float32 | [N] | N <= 0, the same over those with a negative one; both 0 where not trained |
| `owner_offsets` | int64 | [N+1] | token n is owned by `owners[owner_offsets[n]:owner_offsets[n+1]]` |
| `owners` | int32 | [M] | numbers of rollouts, counted through all trees of the batch in order |
| `flat_tokens` | int64 | [K] | tokens of each tree's trained calls, were each a sequence of its own |
| `old_logprob` | float32 | [N] | optional: under the policy before the first update; 0 where P and N are 0 |

P and N, not one sum, because a token may belong to rollouts of both signs: min(rA, clip(r)A) is positively
homogeneous in A for either sign, so the two keep the clipped objective exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from clawexp.errors import LearnerError
from clawexp.segment import Segment
from clawexp.tree import Tree

Normaliser = Literal["rollout", "token", "constant"]
KINDS = ("main", "auxiliary")
DTYPES = {
    "input_ids": torch.int64,
    "position": torch.int64,
    "parent": torch.int64,
    "subtree_end": torch.int64,
    "sampled": torch.bool,
    "behaviour_logprob": torch.float32,
    "version": torch.int32,
    "kind": torch.int8,
    "positive": torch.float32,
    "negative": torch.float32,
    "owner_offsets": torch.int64,
    "owners": torch.int32,
    "flat_tokens": torch.int64,
}
OPTIONAL = {"old_logprob": torch.float32}
ROUNDING = 1e-4
"""An engine's logprob of a near certain token may lie so far above 0."""
_NOT_PER_TOKEN = ("owner_offsets", "owners", "flat_tokens")


def pack(
    trees: Sequence[Tree],
    advantages: Mapping[str, float],
    normaliser: Normaliser = "rollout",
    constant_tokens: int = 1,
) -> TensorDict:
    """Lay trees side by side and give each trained token its P and N.

    `advantages` maps a rollout's id to its advantage. A rollout that is not in it stays out of the loss
    and of the normaliser. With R valid rollouts of T_i trained tokens each, a token of rollout i weighs
    1 / (R T_i) (`rollout`), 1 / sum_j T_j (`token`, as in DAPO) or 1 / (R constant_tokens) (`constant`, as in
    Dr.GRPO). Raises LearnerError where a rollout is in two trees or in none, or an advantage is not finite.
    """
    rollouts = [rollout for tree in trees for rollout in tree.rollouts]
    if len(set(rollouts)) != len(rollouts):
        twice = sorted({rollout for rollout in rollouts if rollouts.count(rollout) > 1})
        raise LearnerError(f"rollouts {twice} are in two trees of one batch. Give each tree once.")
    if lost := sorted(set(advantages) - set(rollouts)):
        raise LearnerError(f"rollouts {lost} have an advantage but no tree. Leave them out, or give their trees.")
    if wrong := [rollout for rollout in rollouts if not np.isfinite(advantages.get(rollout, 0.0))]:
        raise LearnerError(f"the advantages of rollouts {wrong} are not finite. Look at their rewards.")
    first = np.cumsum([0, *(len(tree.rollouts) for tree in trees)])
    tokens = np.concatenate([_trained_tokens(tree) for tree in trees] or [np.zeros(0)])
    valid = np.array([rollout in advantages for rollout in rollouts], bool)
    credit = np.array([advantages.get(rollout, 0.0) for rollout in rollouts])
    credit *= _weights(tokens, valid, normaliser, constant_tokens)
    columns: dict[str, list[NDArray]] = {key: [] for key in DTYPES}
    start = 0
    for tree, rollout in zip(trees, first, strict=False):
        for key, column in _columns(tree, start, int(rollout), credit).items():
            columns[key].append(column)
        start += tree.num_tokens
    columns["owner_offsets"] = [np.cumsum(np.concatenate([[0], *columns["owner_offsets"]]))]
    batch = {
        key: torch.from_numpy(np.concatenate(columns[key] or [np.zeros(0)])).to(dtype) for key, dtype in DTYPES.items()
    }
    return TensorDict(batch, batch_size=[])


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


def _columns(tree: Tree, start: int, rollout: int, credit: NDArray[np.float64]) -> dict[str, NDArray]:
    """One tree's part of every key (of `owner_offsets`, the number of owners of each token).

    Its first token has index `start` in the batch, its first rollout number `rollout`.
    """
    segments = tree.segments
    if not segments:
        return {}
    lengths = np.array([len(segment.ids) for segment in segments])
    above = np.array([segment.parent for segment in segments])
    firsts = start + np.cumsum(lengths) - lengths
    ends = np.array(tree.ends())
    index = np.arange(start, start + lengths.sum())
    parent = index - 1
    parent[firsts - start] = np.where(above < 0, -1, firsts[above] + lengths[above] - 1)
    shares = [credit[[rollout + owner for owner in segment.owners]] * segment.trained for segment in segments]
    owners = [np.array(segment.owners, np.int32) + rollout for segment in segments]
    return {
        "input_ids": np.concatenate([segment.ids for segment in segments]),
        "position": index - np.repeat(firsts - (ends - lengths), lengths),
        "parent": parent,
        "subtree_end": np.repeat(_subtree_ends(firsts + lengths, above), lengths),
        "sampled": np.repeat([segment.sampled for segment in segments], lengths),
        "behaviour_logprob": _filled(segments, [segment.logprobs for segment in segments], 0),
        "version": _filled(segments, [segment.versions for segment in segments], -1),
        "kind": np.repeat([KINDS.index(segment.kind) for segment in segments], lengths),
        "positive": np.repeat([share.clip(min=0).sum() for share in shares], lengths),
        "negative": np.repeat([share.clip(max=0).sum() for share in shares], lengths),
        "owner_offsets": np.repeat([len(segment.owners) for segment in segments], lengths),
        "owners": np.concatenate([np.tile(own, length) for own, length in zip(owners, lengths, strict=True)]),
        "flat_tokens": _flat_tokens(tree, ends),
    }


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


def tree_token_ratio(batch: TensorDict) -> float:
    """How many times fewer tokens the trees hold than their trained calls, each a sequence of its own."""
    return batch["flat_tokens"].sum().item() / max(len(batch["input_ids"]), 1)


def trained(batch: TensorDict) -> Tensor:
    """[N] bool: the tokens that carry loss."""
    return (batch["positive"] != 0) | (batch["negative"] != 0)


def split(batch: TensorDict, token_budget: int) -> Iterator[TensorDict]:
    """Neighbouring whole trees, at most `token_budget` tokens together; a larger tree comes alone. Views."""
    roots = (batch["parent"] < 0).nonzero().flatten().tolist()
    bounds = [*roots, len(batch["parent"])]
    first = 0
    for tree in range(len(roots)):
        if bounds[min(tree + 2, len(roots))] - bounds[first] > token_budget or tree + 1 == len(roots):
            yield _part(batch, first, tree + 1, bounds)
            first = tree + 1


def _part(batch: TensorDict, first: int, last: int, bounds: Sequence[int]) -> TensorDict:
    """Trees `[first, last)`."""
    start, end = bounds[first], bounds[last]
    per_token = [key for key in DTYPES | OPTIONAL if key in batch and key not in _NOT_PER_TOKEN]
    part: dict[str, Tensor] = {key: batch[key][start:end] for key in per_token}
    part["parent"] = (part["parent"] - start).clamp(min=-1)
    part["subtree_end"] = part["subtree_end"] - start
    offsets = batch["owner_offsets"][start : end + 1]
    part["owners"] = batch["owners"][int(offsets[0]) : int(offsets[-1])]
    part["owner_offsets"] = offsets - offsets[0]
    part["flat_tokens"] = batch["flat_tokens"][first:last]
    return TensorDict(part, batch_size=[])


def save(batch: TensorDict, folder: Path) -> None:
    """Write a batch as memory-mapped files."""
    batch.memmap(str(folder))


def load(folder: Path) -> TensorDict:
    """A saved batch, mapped from its files. Raises LearnerError where it breaks a rule."""
    batch = TensorDict.load_memmap(str(folder))
    validate(batch)
    return batch


def validate(batch: TensorDict) -> None:
    """Raise LearnerError with all the rules that a batch breaks."""
    problems = _shape_problems(batch) or [rule for rule, holds in _rules(batch) if not holds]
    if problems:
        raise LearnerError(f"the batch is broken: {'; '.join(problems)}. Make it with `pack`.")


def _shape_problems(batch: TensorDict) -> list[str]:
    known = DTYPES | OPTIONAL
    missing = DTYPES.keys() - batch.keys()
    unknown = batch.keys() - known.keys()
    if missing or unknown:
        return [f"keys {sorted(missing)} are missing, {sorted(unknown)} are unknown"]
    tokens, trees = len(batch["input_ids"]), int((batch["parent"] < 0).sum())
    lengths = {"owner_offsets": tokens + 1, "flat_tokens": trees, "owners": batch["owners"].numel()}
    return [
        f"{key} is {value.dtype} {list(value.shape)}, not {known[key]} [{lengths.get(key, tokens)}]"
        for key, value in batch.items()
        if value.dtype != known[key] or list(value.shape) != [lengths.get(key, tokens)]
    ]


def _rules(batch: TensorDict) -> Iterator[tuple[str, bool]]:
    sampled, logprob, loss = batch["sampled"], batch["behaviour_logprob"], trained(batch)
    yield "trees are not in depth-first order", _is_depth_first(batch)
    yield "a trained token was not sampled", not bool((loss & ~sampled).any())
    yield "a sampled token is a root", not bool((sampled & (batch["parent"] < 0)).any())
    in_range = logprob.isfinite() & (logprob <= ROUNDING)
    yield "a logprob is above 0 or not finite", bool(in_range.all())
    yield "a sampled token has no version", bool((batch["version"][sampled] >= 0).all())
    finite = batch["positive"].isfinite().all() & batch["negative"].isfinite().all()
    yield "positive or negative is not finite", bool(finite)
    signs = (batch["positive"] >= 0).all() & (batch["negative"] <= 0).all()
    yield "positive or negative has the wrong sign", bool(signs)
    offsets = batch["owner_offsets"]
    covers = offsets[0] == 0 and offsets[-1] == len(batch["owners"]) and bool((offsets.diff() > 0).all())
    yield "owner_offsets do not cover owners", bool(covers)


def _is_depth_first(batch: TensorDict) -> bool:
    """Whether parent, position and subtree_end describe one forest in depth-first order."""
    parent, position, end = batch["parent"], batch["position"], batch["subtree_end"]
    index = torch.arange(len(parent))
    inner = parent >= 0
    above = parent[inner]
    if bool((parent >= index).any() | (parent < -1).any()):
        return False
    depth_ok = (position[~inner] == 0).all() & (position[inner] == position[above] + 1).all()
    # A subtree ends where its last child does and is as large as its children together: so it has no gaps.
    last = (index + 1).scatter_reduce(0, above, end[inner], "amax")
    size = torch.ones_like(index).scatter_add(0, above, (end - index)[inner])
    return bool(depth_ok & (last == end).all() & (size == end - index).all())
