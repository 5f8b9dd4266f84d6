"""The batch, a TensorDict of packed trees: its keys, its rules, and what is read off it. Made by `clawexp.batch.pack`.

N tokens stand in depth-first order, tree after tree: K trees, one root token each, R rollouts, and M ownerships,
one for each token and each rollout that holds it.

| key | dtype | shape | is |
|---|---|---|---|
| `input_ids` | int64 | [N] | token ids |
| `position` | int64 | [N] | depth, 0 at a root |
| `parent` | int64 | [N] | index of the token before it on its path; -1 at a root |
| `subtree_end` | int64 | [N] | key k is visible to query q iff k <= q < subtree_end[k] |
| `sampled` | bool | [N] | the policy wrote it |
| `decision` | bool | [N] | sampled, and a valid rollout is trained on it |
| `behaviour_logprob` | float32 | [N] | under the distribution that it was sampled from; 0 where not sampled |
| `version` | int32 | [N] | of the weights that it was sampled from; -1 where not sampled |
| `kind` | int8 | [N] | index into KINDS, of the call that brought it |
| `owner_offsets` | int64 | [N+1] | token n is owned by `owners[owner_offsets[n]:owner_offsets[n+1]]` |
| `owners` | int32 | [M] | numbers of rollouts, counted through all trees of the batch in order |
| `successor` | int64 | [M] | of a trained token, the ownership that comes next (see below), or -1 |
| `within` | bool | [M] | the successor belongs to the same answer |
| `worth` | float64 | [R] | what the algorithm says a rollout is worth; 0 where it is not valid |
| `weight` | float64 | [R] | of one trained token of the rollout in the loss; 0 where it is not valid |
| `flat_tokens` | int64 | [K] | tokens of each tree's trained calls, were each a sequence of its own |
| `emphasis` | float32 | [N] | factor of the token's weight, below 1 in auxiliary calls or if calls count alike; or 1 |
| `experts` | int16 | [N, layers, k] | that the engine sent the token to, -1 where it does not tell; may be missing |
| `token` | int64 | [N] | which token of a tree this is, in a batch of paths (`clawexp.batch.paths`) alone |

The learner adds, for the whole batch and before it is split:

| key | dtype | shape | is |
|---|---|---|---|
| `old_logprob` | float32 | [N] | under the policy before the first update; 0 where nothing is decided |
| `positive` | float32 | [N] | P >= 0, sum of weight x advantage over its owners with a positive advantage |
| `negative` | float32 | [N] | N <= 0, the same over those with a negative one; both 0 where nothing is decided |
| `share` | float32 | [N] | sum of weight over its owners, where tokens without an advantage are trained, too |
| `reference_logprob` | float32 | [N] | under the policy that the run began with, where it is asked for; else 0 |

The successor of a token, for one rollout, is the first trained token after it whose context holds all of its own and
itself: the next one of its answer, or the first of the earliest call below.

P and N, not one sum, because a token may belong to rollouts of both signs: min(rA, clip(r)A) is positively
homogeneous in A for either sign, so the two keep the clipped objective exact.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.errors import LearnerError
from clawexp.records import LOGPROB_ROUNDING

KINDS = ("main", "auxiliary")
DTYPES = {
    "input_ids": torch.int64,
    "position": torch.int64,
    "parent": torch.int64,
    "subtree_end": torch.int64,
    "sampled": torch.bool,
    "decision": torch.bool,
    "behaviour_logprob": torch.float32,
    "version": torch.int32,
    "kind": torch.int8,
    "owner_offsets": torch.int64,
    "owners": torch.int32,
    "successor": torch.int64,
    "within": torch.bool,
    "worth": torch.float64,
    "weight": torch.float64,
    "flat_tokens": torch.int64,
}
OPTIONAL = dict.fromkeys(
    ("emphasis", "old_logprob", "positive", "negative", "share", "reference_logprob"), torch.float32
) | {"experts": torch.int16, "token": torch.int64}
PER_ROLLOUT = ("worth", "weight")
PER_OWNERSHIP = ("owners", "successor", "within")
NOT_PER_TOKEN = ("owner_offsets", "flat_tokens", *PER_OWNERSHIP, *PER_ROLLOUT)


def tree_token_ratio(batch: TensorDict) -> float:
    """How many times fewer tokens the trees hold than their trained calls, each a sequence of its own."""
    return batch["flat_tokens"].sum().item() / max(len(batch["input_ids"]), 1)


def trained(batch: TensorDict) -> Tensor:
    """[N] bool: the tokens that carry loss. For a batch with P and N."""
    return gains(batch) | (batch["share"] != 0) if "share" in batch else gains(batch)


def gains(batch: TensorDict) -> Tensor:
    """[N] bool: the tokens with an advantage. For a batch with P and N."""
    return (batch["positive"] != 0) | (batch["negative"] != 0)


def owned_token(batch: TensorDict) -> Tensor:
    """[M] int64: the token of each ownership."""
    return torch.arange(len(batch["input_ids"])).repeat_interleave(batch["owner_offsets"].diff())


def sum_over_owners(batch: TensorDict, values: Tensor) -> Tensor:
    """[M] -> [N]."""
    return values.new_zeros(len(batch["input_ids"])).index_add_(0, owned_token(batch), values)


def over_rollouts(batch: TensorDict, values: Tensor) -> tuple[Tensor, Tensor]:
    """[N] -> values of the tokens that decide, once for each rollout that owns them, and those rollouts, [n] each."""
    token = owned_token(batch)
    decides = batch["decision"][token]
    return values[token[decides]], batch["owners"][decides].long()


def credited(batch: TensorDict, advantage: Tensor) -> TensorDict:
    """The same batch with P and N of these advantages [M], one for each owner of each token."""
    share = advantage * _weights(batch)
    positive, negative = (sum_over_owners(batch, part).float() for part in (share.clamp(min=0), share.clamp(max=0)))
    return with_columns(batch, positive=positive, negative=negative)


def shared(batch: TensorDict) -> TensorDict:
    """The same batch with `share`."""
    return with_columns(batch, share=sum_over_owners(batch, _weights(batch)).float())


def with_columns(batch: TensorDict, **columns: Tensor) -> TensorDict:
    """The same batch with these keys, too, or instead."""
    return TensorDict({**dict(batch.items()), **columns}, batch_size=[])


def _weights(batch: TensorDict) -> Tensor:
    """Of each ownership in the loss, [M]."""
    token = owned_token(batch)
    weight = batch["weight"][batch["owners"]] * batch["decision"][token]
    return weight * batch["emphasis"].double()[token] if "emphasis" in batch else weight


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
    lengths = {"owner_offsets": tokens + 1, "flat_tokens": trees}
    lengths |= dict.fromkeys(PER_OWNERSHIP, batch["owners"].numel())
    lengths |= dict.fromkeys(PER_ROLLOUT, batch["worth"].numel())
    problems = []
    for key, value in batch.items():
        want = [lengths.get(key, tokens)]
        if key == "experts":
            want += value.shape[1:] if value.ndim == 3 else [0, 0]
        if value.dtype != known[key] or list(value.shape) != want:
            problems.append(f"{key} is {value.dtype} {list(value.shape)}, not {known[key]} {want}")
    return problems


def _rules(batch: TensorDict) -> Iterator[tuple[str, bool]]:
    sampled, logprob = batch["sampled"], batch["behaviour_logprob"]
    yield "trees are not in depth-first order", _is_depth_first(batch)
    yield "a token that decides was not sampled", not bool((batch["decision"] & ~sampled).any())
    yield "a sampled token is a root", not bool((sampled & (batch["parent"] < 0)).any())
    in_range = logprob.isfinite() & (logprob <= LOGPROB_ROUNDING)
    yield "a logprob is above 0 or not finite", bool(in_range.all())
    yield "a sampled token has no version", bool((batch["version"][sampled] >= 0).all())
    offsets, owners = batch["owner_offsets"], batch["owners"]
    covers = offsets[0] == 0 and offsets[-1] == len(owners) and bool((offsets.diff() > 0).all())
    yield "owner_offsets do not cover owners", bool(covers)
    known = bool(((owners >= 0) & (owners < len(batch["worth"]))).all())
    yield "an owner is no rollout", known
    yield "a successor is not a later token of the same rollout", _succeeds(batch)
    worth = batch["worth"].isfinite() & batch["weight"].isfinite() & (batch["weight"] >= 0)
    yield "a return or weight is not finite, or a weight below 0", bool(worth.all())
    if "emphasis" in batch:
        yield "an emphasis is not within (0, 1]", bool(((batch["emphasis"] > 0) & (batch["emphasis"] <= 1)).all())
    if "positive" in batch and "negative" in batch:
        yield from _credit_rules(batch)


def _credit_rules(batch: TensorDict) -> Iterator[tuple[str, bool]]:
    positive, negative = batch["positive"], batch["negative"]
    yield "a trained token decides nothing", not bool((trained(batch) & ~batch["decision"]).any())
    yield "positive or negative is not finite", bool(positive.isfinite().all() & negative.isfinite().all())
    yield "positive or negative has the wrong sign", bool((positive >= 0).all() & (negative <= 0).all())


def _succeeds(batch: TensorDict) -> bool:
    successor, owners = batch["successor"], batch["owners"]
    index = (successor != -1).nonzero().flatten()
    after = successor[index]
    in_order = bool(((after > index) & (after < len(owners))).all())
    return in_order and torch.equal(owners[after], owners[index])


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
