from dataclasses import replace

import pytest
import torch
from sessions import call, random_rollout, rollout

from clawexp.batch import load, pack, save, split, trained, tree_token_ratio, validate
from clawexp.errors import LearnerError
from clawexp.forest import merge, prune
from clawexp.tree import grow


def two_turns(rollout_id="r0", last=7):
    return rollout(
        [
            call("c0", [1, 2], [3, 9], cause="root", verdict="tool_calls"),
            call("c1", [1, 2, 3, 9, 5, 6], [last], logprobs=(-0.25,)),
            call("c2", [1, 8], [4], cause="subagent"),
        ],
        rollout_id,
    )


def random_trees(seed, count=4):
    return [prune(grow(random_rollout(seed + n, rollout_id=f"r{n}")), auxiliary="full") for n in range(count)]


def columns(batch, *keys):
    return [batch[key].tolist() for key in keys]


def test_a_packed_tree_has_the_documented_columns():
    batch = pack([grow(two_turns())], {"r0": 8.0})
    validate(batch)
    assert columns(batch, "input_ids", "position", "parent", "subtree_end") == [
        [1, 2, 3, 9, 5, 6, 7, 8, 4],
        [0, 1, 2, 3, 4, 5, 6, 1, 2],
        [-1, 0, 1, 2, 3, 4, 5, 0, 7],
        [9, 7, 7, 7, 7, 7, 7, 9, 9],
    ]
    assert batch["sampled"].nonzero().flatten().tolist() == [2, 3, 6, 8]
    assert batch["behaviour_logprob"].tolist() == pytest.approx([0, 0, -0.5, -0.51, 0, 0, -0.25, 0, -0.5])
    assert columns(batch, "version", "positive", "negative") == [
        [-1, -1, 0, 0, -1, -1, 0, -1, 0],
        [0, 0, 2, 2, 0, 0, 2, 0, 2],
        [0] * 9,
    ]
    assert columns(batch, "owner_offsets", "owners") == [list(range(10)), [0] * 9]


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


@pytest.mark.parametrize(
    ("normaliser", "first", "second"),
    [("rollout", 1 / (2 * 4), 1 / (2 * 1)), ("token", 1 / 5, 1 / 5), ("constant", 1 / 20, 1 / 20)],
)
def test_each_normaliser_weighs_tokens_as_it_says(normaliser, first, second):
    trees = [grow(two_turns("r0")), grow(rollout([call("c0", [1], [2])], "r1"))]
    batch = pack(trees, {"r0": 1.0, "r1": -1.0}, normaliser, constant_tokens=10)
    assert batch["positive"][batch["positive"] > 0].tolist() == pytest.approx([first] * 4)
    assert batch["negative"][batch["negative"] < 0].tolist() == pytest.approx([-second])


@pytest.mark.parametrize("normaliser", ["rollout", "token", "constant"])
def test_a_rollout_without_an_advantage_contributes_nothing(normaliser):
    trees = random_trees(5)
    alone = pack(trees[:3], {"r0": 1.0, "r1": -0.5, "r2": 0.25}, normaliser, 50)
    beside = pack(trees, {"r0": 1.0, "r1": -0.5, "r2": 0.25}, normaliser, 50)
    count = len(alone["parent"])
    assert torch.equal(beside["positive"][:count], alone["positive"])
    assert torch.equal(beside["negative"][:count], alone["negative"])
    assert not trained(beside)[count:].any()


def test_merged_rollouts_of_both_signs_leave_a_shared_token_both_sums():
    trees = [grow(two_turns("r0", last=7)), grow(two_turns("r1", last=8))]
    batch = pack([merge(trees)], {"r0": 8.0, "r1": -4.0})
    shared = 2
    assert batch["positive"][shared] == 8.0 / (2 * 4)
    assert batch["negative"][shared] == -4.0 / (2 * 4)
    start, end = batch["owner_offsets"][shared : shared + 2].tolist()
    assert batch["owners"][start:end].tolist() == [0, 1]
    validate(batch)


def test_merging_changes_no_rollouts_total_weight():
    for seed in range(10):
        trees = random_trees(seed)
        advantages = {"r0": 1.0, "r1": -0.5, "r2": 0.25, "r3": -0.75}
        apart, merged = pack(trees, advantages), pack([merge(trees)], advantages)
        validate(merged)
        for key in ("positive", "negative"):
            torch.testing.assert_close(apart[key].sum(), merged[key].sum())


def test_random_sessions_pack_into_valid_batches_that_split_into_valid_parts():
    for seed in range(12):
        batch = pack(random_trees(seed), {"r0": 1.0, "r1": -1.0})
        validate(batch)
        for budget in (1, 20, 10_000):
            parts = list(split(batch, budget))
            for part in parts:
                validate(part)
                assert len(part["parent"]) <= budget or int((part["parent"] < 0).sum()) == 1
            for key in ("input_ids", "position", "sampled", "positive", "owners", "flat_tokens"):
                assert torch.equal(torch.cat([part[key] for part in parts]), batch[key])


def test_parts_are_as_few_as_neighbours_allow():
    trees = [grow(rollout([call("c0", [n], [n, n])], f"r{n}")) for n in range(5)]
    sizes = [len(part["parent"]) for part in split(pack(trees, {}), 7)]
    assert sizes == [6, 6, 3]


def test_a_batch_without_trees_is_valid_and_has_no_parts():
    batch = pack([], {})
    validate(batch)
    assert list(split(batch, 10)) == []
    assert tree_token_ratio(batch) == 0.0


def test_a_saved_batch_is_read_back_bit_for_bit(tmp_path):
    batch = pack(random_trees(1), {"r0": 1.0, "r1": -1.0})
    save(batch, tmp_path / "batch")
    read = load(tmp_path / "batch")
    assert read.keys() == batch.keys()
    assert all(torch.equal(read[key], batch[key]) for key in batch.keys())  # noqa: SIM118


def test_a_rollout_in_two_trees_is_refused():
    with pytest.raises(LearnerError, match=r"\['r0'\] are in two trees"):
        pack([grow(two_turns()), grow(two_turns())], {"r0": 1.0})


def test_an_advantage_without_a_tree_is_refused():
    with pytest.raises(LearnerError, match=r"\['r9'\] have an advantage but no tree"):
        pack([grow(two_turns())], {"r0": 1.0, "r9": 1.0})


def test_an_advantage_that_is_not_finite_is_refused():
    with pytest.raises(LearnerError, match=r"\['r0'\] are not finite"):
        pack([grow(two_turns())], {"r0": float("nan")})


@pytest.mark.parametrize(
    ("key", "place", "value", "words"),
    [
        ("parent", 3, 1, "depth-first"),
        ("parent", 7, 9, "depth-first"),
        ("position", 4, 3, "depth-first"),
        ("subtree_end", 1, 9, "depth-first"),
        ("positive", 0, 0.5, "trained token was not sampled"),
        ("positive", 2, -0.5, "wrong sign"),
        ("positive", 2, float("inf"), "not finite"),
        ("behaviour_logprob", 2, 0.5, "above 0"),
        ("behaviour_logprob", 2, float("nan"), "not finite"),
        ("version", 2, -1, "no version"),
        ("sampled", 0, True, "root"),
        ("owner_offsets", 9, 8, "do not cover"),
    ],
)
def test_a_broken_batch_is_refused_by_the_rule_that_it_breaks(key, place, value, words):
    batch = pack([grow(two_turns())], {"r0": 8.0})
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


def test_an_untrained_answer_carries_no_weight_and_does_not_count():
    tree = grow(two_turns())
    segments = [replace(s, trained=s.trained and s.calls != ("c2",)) for s in tree.segments]
    batch = pack([replace(tree, segments=tuple(segments))], {"r0": 3.0})
    assert batch["positive"].tolist() == [0, 0, 1, 1, 0, 0, 1, 0, 0]
    assert batch["flat_tokens"].tolist() == [4 + 7]
