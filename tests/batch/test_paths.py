import pytest
import torch
from made_rollouts import random_trees
from tensordict import TensorDict

from clawexp.batch.batch import credited, owned_token, shared, validate
from clawexp.batch.pack import pack
from clawexp.batch.paths import from_paths, to_paths
from clawexp.errors import LearnerError
from clawexp.tree.forest import merge


def random_batch(seed: int, *, merged: bool) -> TensorDict:
    trees = random_trees(seed)
    batch = pack([merge(trees)] if merged else trees, {"r0": 1.0, "r1": -1.0})
    return shared(credited(batch, batch["worth"][batch["owners"]]))


def spelt(batch: TensorDict, leaf: int) -> list[int]:
    path = []
    while leaf >= 0:
        path.append(int(batch["input_ids"][leaf]))
        leaf = int(batch["parent"][leaf])
    return path[::-1]


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_paths_are_those_of_the_trees_and_make_them_again_to_the_bit(seed: int, merged: bool):
    batch = random_batch(seed, merged=merged)
    paths = to_paths(batch)
    validate(paths)
    parents = set(batch["parent"].tolist())
    leaves = [token for token in range(len(batch["parent"])) if token not in parents]
    ends = [i for i, end in enumerate(paths["subtree_end"].tolist()) if end == i + 1]
    assert [spelt(paths, end) for end in ends] == [spelt(batch, leaf) for leaf in leaves]
    again = from_paths(paths)
    assert again.keys() == batch.keys()
    for key in batch.sorted_keys:
        assert torch.equal(again[key], batch[key]), key


@pytest.mark.parametrize("seed", range(6))
def test_each_token_decides_once_and_its_owners_are_the_same_everywhere(seed: int):
    batch = random_batch(seed, merged=True)
    paths = to_paths(batch)
    assert len(paths["input_ids"]) > len(batch["input_ids"])
    decides = paths["token"][paths["decision"]]
    assert torch.equal(decides, batch["decision"].nonzero().flatten())
    for key in ("positive", "negative", "share"):
        torch.testing.assert_close(paths[key].sum(), batch[key].sum())
        assert not paths[key][~paths["decision"]].any()
    assert torch.equal(paths["flat_tokens"].sum(), batch["flat_tokens"].sum())
    offsets, owners = batch["owner_offsets"].tolist(), batch["owners"].tolist()
    wanted = [owner for token in paths["token"].tolist() for owner in owners[offsets[token] : offsets[token + 1]]]
    assert paths["owners"].tolist() == wanted
    goes_on = paths["successor"] >= 0
    there = owned_token(paths)
    after = paths["token"][there[paths["successor"][goes_on]]]
    was = batch["successor"] >= 0
    assert torch.equal(after, owned_token(batch)[batch["successor"][was]])


def test_a_batch_without_trees_has_no_paths():
    batch = pack([], {})
    assert len(to_paths(batch)["input_ids"]) == 0
    assert from_paths(to_paths(batch))["owner_offsets"].tolist() == [0]


def test_what_are_no_paths_of_a_batch_is_refused():
    batch = random_batch(0, merged=True)
    with pytest.raises(LearnerError, match="no `token`"):
        from_paths(batch)
    paths = to_paths(batch)
    paths["token"] = paths["token"].flip(0)
    with pytest.raises(LearnerError, match="the order that to_paths gives them"):
        from_paths(paths)
