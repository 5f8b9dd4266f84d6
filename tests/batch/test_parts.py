import pytest
import torch
from made_rollouts import call, random_trees, rollout
from tensordict import TensorDict

from clawexp.batch.batch import credited, shared
from clawexp.batch.pack import pack
from clawexp.batch.parts import best_fit, split
from clawexp.tree.forest import merge
from clawexp.tree.tree import grow

OWN = ("input_ids", "position", "decision", "positive", "negative", "share", "behaviour_logprob", "kind")


def random_batch(seed: int, *, merged: bool = False) -> TensorDict:
    trees = random_trees(seed)
    batch = pack([merge(trees)] if merged else trees, {"r0": 1.0, "r1": -1.0})
    return shared(credited(batch, batch["worth"][batch["owners"]]))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_whole_trees_split_into_parts_that_make_the_whole(seed: int, budget: int):
    batch = random_batch(seed)
    parts = list(split(batch, budget))
    for part in parts:
        assert part.tokens <= budget or int((part.batch["parent"] < 0).sum()) == 1
    for key in OWN:
        assert torch.equal(torch.cat([part.batch[key] for part in parts]), batch[key])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("budget", [1, 20, 60])
def test_a_tree_that_is_too_large_is_cut_and_no_token_is_lost_or_trained_twice(seed: int, budget: int):
    batch = random_batch(seed, merged=True)
    parts = list(split(batch, budget, cut_above=budget))
    assert len(parts) > 1
    for part in parts:
        assert part.tokens <= max(budget, longest(part.batch))
        decides = part.batch["decision"].nonzero().flatten()
        assert torch.equal(part.targets(batch["decision"]), decides[decides >= part.repeated])
    for key in OWN:
        assert torch.equal(torch.cat([part.batch[key][part.repeated :] for part in parts]), batch[key])


@pytest.mark.parametrize("seed", range(6))
def test_every_token_of_a_cut_tree_has_the_context_that_it_had(seed: int):
    batch = random_batch(seed, merged=True)
    for part in split(batch, 30, cut_above=30):
        for token in range(part.repeated, part.tokens):
            whole = token - part.repeated + part.start
            assert context(part.batch, token) == context(batch, whole)


def context(batch: TensorDict, token: int) -> list[int]:
    """Ids of what is visible to a token, by `subtree_end`, and, to be sure, by `parent`."""
    seen = [k for k in range(token + 1) if token < int(batch["subtree_end"][k])]
    above = []
    while token >= 0:
        above.append(token)
        token = int(batch["parent"][token])
    assert above[::-1] == seen
    return batch["input_ids"][seen].tolist()


def longest(batch: TensorDict) -> int:
    return int(batch["position"].max()) + 1


def test_a_cut_is_made_where_it_repeats_least():
    shared_start = [call(f"c{n}", [1, 2, 3, 4], [10 + n, 5, 6]) for n in range(2)]
    elsewhere = [call(f"d{n}", [1, 7], [20 + n, 5, 6]) for n in range(2)]
    batch = pack([merge([grow(rollout([one], f"r{n}")) for n, one in enumerate([*shared_start, *elsewhere])])], {})
    parts = list(split(batch, 12, cut_above=12))
    assert [part.repeated for part in parts] == [0, 1]
    assert [part.tokens for part in parts] == [10, 8]


def test_parts_are_as_few_as_neighbours_allow():
    trees = [grow(rollout([call("c0", [n], [n, n])], f"r{n}")) for n in range(5)]
    assert [part.tokens for part in split(pack(trees, {}), 7)] == [6, 6, 3]
    assert list(split(pack([], {}), 7)) == []


def test_trees_are_put_together_so_that_parts_are_filled():
    assert best_fit([5, 6, 4, 3, 2], 10) == [1, 2, 0, 3, 4]
    assert best_fit([5, 6, 4], 15) == [0, 1, 2]
    assert best_fit([], 15) == []
    trees = [grow(rollout([call("c0", [n], [n] * (size - 1))], f"r{n}")) for n, size in enumerate([5, 6, 4, 3, 2])]
    apart = pack([trees[index] for index in best_fit([tree.num_tokens for tree in trees], 10)], {})
    assert [part.tokens for part in split(apart, 10)] == [10, 10]
