from dataclasses import replace

import numpy as np
import pytest
from made_rollouts import call, random_rollout, rollout

from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import grow


def spelt(tree, trained_only=False):
    """(rollout, call) -> prompt and answer as the tree spells them."""
    return {
        (tree.rollouts[owner], name): np.concatenate([s.ids for s in tree.path(pieces[-1])]).tolist()
        for (owner, name), pieces in tree.answers().items()
        if tree.segments[pieces[-1]].trained or not trained_only
    }


def trained_calls(tree):
    return {name for _, name in spelt(tree, trained_only=True)}


def retried():
    """c0 lost, c1 malformed, c2 goes on; c3 repeats c2; c4 is a title."""
    return rollout(
        [
            call("c0", [1], [2, 2], finish_reason="abort"),
            call("c1", [1], [3], cause="retry", verdict="malformed"),
            call("c2", [1], [4], cause="retry"),
            call("c3", [1], [4], cause="retry"),
            call("c4", [1, 8], [9], kind="auxiliary", cause="subagent"),
            call("c5", [1, 4, 5], [6]),
        ]
    )


@pytest.mark.parametrize(
    ("leaf_filter", "auxiliary", "calls"),
    [
        ("cause", "drop", {"c1", "c2", "c5"}),
        ("cause", "full", {"c1", "c2", "c4", "c5"}),
        ("paper", "drop", {"c2", "c5"}),
        ("paper", "full", {"c2", "c4", "c5"}),
    ],
)
def test_each_filter_keeps_its_calls(leaf_filter, auxiliary, calls):
    pruned = prune(grow(retried()), leaf_filter, auxiliary)
    assert trained_calls(pruned) == calls
    assert spelt(pruned).keys() == {("r0", name) for name in calls}


def test_an_untrained_answer_stays_where_a_trained_one_follows_it():
    calls = [call("c0", [1], [2], kind="auxiliary"), call("c1", [1, 2, 3], [4])]
    pruned = prune(grow(rollout(calls)))
    assert [segment.ids.tolist() for segment in pruned.segments] == [[1], [2], [3], [4]]
    assert [segment.trained for segment in pruned.segments] == [False, False, False, True]


def test_a_tree_that_trains_nothing_prunes_to_nothing():
    assert prune(grow(rollout([call("c0", [1], [2], kind="auxiliary")]))).segments == ()


def test_what_is_left_of_random_rollouts_is_spelt_as_before():
    for seed in range(40):
        tree = grow(random_rollout(seed))
        for leaf_filter in ("cause", "paper"):
            before, after = spelt(tree), spelt(prune(tree, leaf_filter), trained_only=True)
            assert after.items() <= before.items()


def test_rollouts_share_prompt_and_answer_as_far_as_they_agree_to_the_bit():
    first = rollout([call("a", [1, 2], [3, 4], logprobs=(-0.1, -0.2))], "r0")
    second = rollout([call("b", [1, 2], [3, 5], logprobs=(-0.1, -0.3))], "r1")
    merged = merge([grow(first), grow(second)])
    assert [(s.ids.tolist(), s.owners) for s in merged.segments] == [
        ([1, 2], (0, 1)),
        ([3], (0, 1)),
        ([4], (0,)),
        ([5], (1,)),
    ]
    assert merged.segments[1].calls == ("a", "b")


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": np.array([-0.4], np.float32)},
        {"versions": np.array([1], np.int32)},
        {"trained": False},
    ],
)
def test_answers_of_one_spelling_but_other_origin_stay_apart(changes):
    trees = [grow(rollout([call(name, [1], [3])], name)) for name in ("r0", "r1")]
    segments = (trees[1].segments[0], replace(trees[1].segments[1], **changes))
    merged = merge([trees[0], replace(trees[1], segments=segments)])
    assert [segment.owners for segment in merged.segments] == [(0, 1), (0,), (1,)]


def test_siblings_of_one_rollout_stay_apart_beside_another_rollout():
    twice = [call("c0", [1], [3]), call("c1", [1], [3], cause="subagent")]
    merged = merge([grow(rollout(twice, "r0")), grow(rollout(twice, "r1"))])
    assert [(s.ids.tolist(), s.owners) for s in merged.segments] == [
        ([1], (0, 1)),
        ([3], (0, 1)),
        ([3], (0, 1)),
    ]


def test_merged_random_rollouts_spell_every_call_and_hold_each_answer_once():
    for seed in range(40):
        trees = [grow(random_rollout(seed * 10 + number, rollout_id=f"r{number}")) for number in range(3)]
        # The same session once more, as a deterministic engine would give it.
        trees.append(grow(random_rollout(seed * 10, rollout_id="r3")))
        merged = merge(trees)
        assert spelt(merged) == {key: ids for tree in trees for key, ids in spelt(tree).items()}
        assert merged.num_tokens <= sum(tree.num_tokens for tree in trees[:3])
        counts = [0] * 4
        for segment in merged.segments:
            for owner in segment.owners:
                counts[owner] += segment.sampled * len(segment.ids)
        assert counts == [sum(len(s.ids) for s in tree.segments if s.sampled) for tree in trees]


def test_merging_keeps_the_records_of_rewritten_answers():
    calls = [call("c0", [1], [2, 3, 4]), call("c1", [1, 2, 7], [8], cause="rewrite")]
    trees = [grow(rollout(calls, "r0")), grow(rollout(calls, "r1"))]
    assert len(merge(trees).splits) == 2


def test_merged_rollouts_keep_the_experts_of_the_first_and_what_only_others_tell():
    def experts(*rows):
        return np.array([[[row, row + 1]] for row in rows], np.int16)

    one = rollout([call("c0", [1, 2], [3, 9], experts=experts(10, 11, 12))], "r0")
    calls = [
        call("c0", [1, 2], [3, 9], experts=experts(20, 21, 22)),
        call("c1", [1, 2, 3, 9, 5], [7], shared=4, experts=experts(23, 24)),
    ]
    other = rollout(calls, "r1")
    tree = merge([grow(one), grow(other)])
    assert [s.ids.tolist() for s in tree.segments] == [[1, 2], [3, 9], [5], [7]]
    told = [s.experts[:, 0, 0].tolist() for s in tree.segments if s.experts is not None]
    assert told == [[10, 11], [12, 23], [24], [-1]]
