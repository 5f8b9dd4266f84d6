import pytest
import torch
from made_rollouts import random_trees, two_turns

from clawexp.batch.batch import credited, load, save, sum_over_owners, trained, tree_token_ratio, validate
from clawexp.batch.pack import pack
from clawexp.errors import LearnerError
from clawexp.tree.forest import merge
from clawexp.tree.tree import grow


def by_return(batch):
    """P and N where a token's advantage is its rollout's return."""
    return credited(batch, batch["worth"][batch["owners"]])


def test_the_subtree_end_is_the_whole_attention_mask():
    batch = pack(random_trees(3), {})
    for query in range(len(batch["parent"])):
        path, token = set(), query
        while token >= 0:
            path.add(token)
            token = int(batch["parent"][token])
        index = torch.arange(query + 1)
        visible = index[batch["subtree_end"][: query + 1] > query]
        assert set(visible.tolist()) == path


def test_the_ratio_compares_with_each_trained_call_as_a_sequence_of_its_own():
    batch = pack([grow(two_turns())], {"r0": 1.0})
    assert batch["flat_tokens"].tolist() == [4 + 7 + 3]
    assert tree_token_ratio(batch) == pytest.approx(14 / 9)
    merged = pack([merge([grow(two_turns("r0")), grow(two_turns("r1"))])], {})
    assert tree_token_ratio(merged) == pytest.approx(28 / 9)


def test_merged_rollouts_of_both_signs_leave_a_shared_token_both_sums():
    trees = [grow(two_turns("r0", last=7)), grow(two_turns("r1", last=8))]
    batch = by_return(pack([merge(trees)], {"r0": 8.0, "r1": -4.0}))
    shared = 2
    assert batch["positive"][shared] == 8.0 / (2 * 4)
    assert batch["negative"][shared] == -4.0 / (2 * 4)
    start, end = batch["owner_offsets"][shared : shared + 2].tolist()
    assert batch["owners"][start:end].tolist() == [0, 1]
    validate(batch)


def test_a_batch_without_trees_is_valid():
    batch = pack([], {})
    validate(batch)
    assert tree_token_ratio(batch) == 0.0


def test_a_saved_batch_is_read_back_bit_for_bit(tmp_path):
    batch = pack(random_trees(1), {"r0": 1.0, "r1": -1.0})
    save(batch, tmp_path / "batch")
    read = load(tmp_path / "batch")
    assert read.keys() == batch.keys()
    assert all(torch.equal(read[key], batch[key]) for key in batch.keys())  # noqa: SIM118


@pytest.mark.parametrize(
    ("key", "place", "value", "words"),
    [
        ("parent", 3, 1, "depth-first"),
        ("parent", 7, 9, "depth-first"),
        ("position", 4, 3, "depth-first"),
        ("subtree_end", 1, 9, "depth-first"),
        ("positive", 0, 0.5, "trained token decides nothing"),
        ("decision", 0, True, "decides was not sampled"),
        ("positive", 2, -0.5, "wrong sign"),
        ("positive", 2, float("inf"), "not finite"),
        ("behaviour_logprob", 2, 0.5, "above 0"),
        ("behaviour_logprob", 2, float("nan"), "not finite"),
        ("version", 2, -1, "no version"),
        ("sampled", 0, True, "root"),
        ("owner_offsets", 9, 8, "do not cover"),
        ("owners", 3, 1, "an owner is no rollout"),
        ("successor", 2, 1, "a successor is not a later token"),
        ("successor", 2, 9, "a successor is not a later token"),
        ("worth", 0, float("nan"), "return or weight is not finite"),
        ("weight", 0, -1.0, "a weight below 0"),
    ],
)
def test_a_broken_batch_is_refused_by_the_rule_that_it_breaks(key, place, value, words):
    batch = by_return(pack([grow(two_turns())], {"r0": 8.0}))
    batch[key][place] = value
    with pytest.raises(LearnerError, match=words):
        validate(batch)


def test_a_batch_of_wrong_keys_dtypes_or_shapes_is_refused():
    batch = pack([grow(two_turns())], {"r0": 8.0})
    for key, value, words in [
        ("kind", batch["kind"].long(), "kind is torch.int64"),
        ("version", batch["version"][:3], r"version is torch.int32 \[3\], not torch.int32 \[9\]"),
        ("extra", batch["kind"], "unknown"),
    ]:
        broken = batch.copy()
        broken[key] = value
        with pytest.raises(LearnerError, match=words):
            validate(broken)
    with pytest.raises(LearnerError, match=r"\['kind'\] are missing"):
        validate(batch.exclude("kind"))


def test_a_successor_of_another_rollout_is_refused():
    trees = [grow(two_turns("r0", last=7)), grow(two_turns("r1", last=8))]
    batch = pack([merge(trees)], {"r0": 1.0, "r1": 1.0})
    first = int(batch["owner_offsets"][2])
    batch["successor"][first] = batch["successor"][first + 1]
    with pytest.raises(LearnerError, match="later token of the same rollout"):
        validate(batch)


def test_values_of_owners_are_summed_by_token():
    batch = pack([merge([grow(two_turns("r0", last=7)), grow(two_turns("r1", last=8))])], {})
    ones = torch.ones(len(batch["owners"]))
    assert sum_over_owners(batch, ones).tolist() == [2, 2, 2, 2, 2, 2, 1, 1, 2, 2]


def test_credit_keeps_both_signs_apart_and_leaves_out_who_is_not_trained_on():
    trees = [grow(two_turns(f"r{n}")) for n in range(3)]
    batch = pack([merge(trees)], {"r0": 0.0, "r1": 0.0}, "constant", 1)
    given = torch.tensor([3.0, -1.0, 50.0]).repeat(len(batch["input_ids"]))
    found = credited(batch, given)
    assert found["positive"].tolist() == [0, 0, 1.5, 1.5, 0, 0, 1.5, 0, 1.5]
    assert found["negative"].tolist() == [0, 0, -0.5, -0.5, 0, 0, -0.5, 0, -0.5]
    assert trained(found).tolist() == batch["decision"].tolist()
