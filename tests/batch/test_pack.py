import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_rollouts import call, random_rollout, random_trees, rollout, two_turns

from clawexp.batch.batch import credited, validate, with_columns
from clawexp.batch.pack import pack
from clawexp.batch.parts import split
from clawexp.errors import LearnerError
from clawexp.records import Call, Rollout
from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import Tree, grow


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
    assert batch["decision"].tolist() == batch["sampled"].tolist()
    assert batch["behaviour_logprob"].tolist() == pytest.approx([0, 0, -0.5, -0.51, 0, 0, -0.25, 0, -0.5])
    assert columns(batch, "version", "worth", "weight") == [[-1, -1, 0, 0, -1, -1, 0, -1, 0], [8], [1 / 4]]
    assert columns(batch, "owner_offsets", "owners") == [list(range(10)), [0] * 9]
    assert columns(batch, "successor", "within") == [
        [-1, -1, 3, 6, -1, -1, -1, -1, -1],
        [False, False, True, False, False, False, False, False, False],
    ]


@pytest.mark.parametrize(
    ("normaliser", "first", "second"),
    [("rollout", 1 / (2 * 4), 1 / (2 * 1)), ("token", 1 / 5, 1 / 5), ("constant", 1 / 20, 1 / 20)],
)
def test_each_normaliser_weighs_tokens_as_it_says(normaliser, first, second):
    trees = [grow(two_turns("r0")), grow(rollout([call("c0", [1], [2])], "r1"))]
    batch = pack(trees, {"r0": 1.0, "r1": -1.0}, normaliser, constant_tokens=10)
    assert batch["weight"].tolist() == pytest.approx([first, second])


def test_calls_count_alike_where_each_is_a_sample_of_its_own():
    trees = [grow(two_turns("r0")), grow(rollout([call("c0", [1], [2])], "r1"))]
    assert [len(answer) for answer in trees[0].answers().values()] == [1, 1, 1]
    batch = credited(pack(trees, {"r0": 1.0, "r1": -1.0}, "call"), torch.tensor([1.0] * 9 + [-1.0] * 2).double())
    # Answers of 2, 1, 1 and 1 tokens: each of the four weighs a quarter.
    assert (batch["positive"] + batch["negative"])[batch["decision"]].tolist() == pytest.approx(
        [1 / 8, 1 / 8, 1 / 4, 1 / 4, -1 / 4]
    )
    without = pack(trees, {"r0": 1.0}, "call")
    assert without["weight"].tolist() == pytest.approx([1 / 3, 0])
    with pytest.raises(LearnerError, match="share a tree, and the normaliser is `call`"):
        pack([merge(trees)], {"r0": 1.0}, "call")


def test_prompts_count_alike_however_many_rollouts_and_tokens_they_have():
    trees = [grow(two_turns("r0")), *(grow(rollout([call("c0", [1], [2])], f"r{n}")) for n in (1, 2, 3))]
    groups = {"r0": ("a", "h"), "r1": ("a", "h"), "r2": ("b", "h"), "r3": ("c", "h")}
    batch = pack(trees, dict.fromkeys(("r0", "r1", "r2"), 1.0), "prompt", groups=groups)
    assert batch["weight"].tolist() == pytest.approx([1 / (2 * 5), 1 / (2 * 5), 1 / 2, 0])
    with pytest.raises(LearnerError, match=r"\['r2'\] are of no group"):
        pack(trees, dict.fromkeys(("r0", "r1", "r2"), 1.0), "prompt", groups={"r0": ("a", "h"), "r1": ("a", "h")})


@pytest.mark.parametrize(("normaliser", "weights"), [("rollout", [1 / (2 * 3.25), 1 / 2]), ("token", [1 / 4.25] * 2)])
def test_tokens_of_auxiliary_calls_weigh_and_count_as_much_as_is_said(normaliser, weights):
    made = two_turns("r0")
    made = replace(made, calls=(*made.calls[:2], replace(made.calls[2], kind="auxiliary")))
    trees = [prune(grow(made), auxiliary=0.25), grow(rollout([call("c0", [1], [2])], "r1"))]
    batch = pack(trees, {"r0": 1.0, "r1": 1.0}, normaliser, auxiliary_weight=0.25)
    validate(batch)
    assert batch["weight"].tolist() == pytest.approx(weights)
    credit = credited(batch, batch["worth"][batch["owners"]])["positive"]
    main, side, other = (weights[0], 0.25 * weights[0], weights[1])
    assert credit[batch["decision"]].tolist() == pytest.approx([main, main, main, side, other])


@pytest.mark.parametrize("normaliser", ["rollout", "token", "constant"])
def test_a_rollout_without_a_return_contributes_nothing(normaliser):
    trees = random_trees(5)
    returns = {"r0": 1.0, "r1": -0.5, "r2": 0.25}
    alone, beside = pack(trees[:3], returns, normaliser, 50), pack(trees, returns, normaliser, 50)
    count = len(alone["parent"])
    assert beside["weight"].tolist() == [*alone["weight"].tolist(), 0]
    assert not beside["decision"][count:].any()
    assert torch.equal(beside["decision"][:count], alone["decision"])


def test_merging_changes_no_rollouts_total_weight():
    for seed in range(10):
        trees, returns = random_trees(seed), {"r0": 1.0, "r1": -0.5, "r2": 0.25, "r3": -0.75}
        apart, merged = (pack(each, returns) for each in (trees, [merge(trees)]))
        validate(merged)
        apart, merged = (credited(each, each["worth"][each["owners"]]) for each in (apart, merged))
        for key in ("positive", "negative"):
            torch.testing.assert_close(apart[key].sum(), merged[key].sum())


def test_answers_of_different_kinds_are_not_merged():
    one, other = (
        rollout([call("c0", [1], [2], kind=kind)], name) for kind, name in (("main", "r0"), ("auxiliary", "r1"))
    )
    trees = [prune(grow(each), auxiliary="full") for each in (one, other)]
    merged = pack([merge(trees)], {"r0": 1.0, "r1": 1.0}, auxiliary_weight=0.5)
    credit = credited(merged, merged["worth"][merged["owners"]])
    apart = pack(trees, {"r0": 1.0, "r1": 1.0}, auxiliary_weight=0.5)
    assert credit["positive"].sum() == credited(apart, apart["worth"][apart["owners"]])["positive"].sum()
    assert int(merged["decision"].sum()) == 2


def test_a_rollout_in_two_trees_is_refused():
    with pytest.raises(LearnerError, match=r"\['r0'\] are in two trees"):
        pack([grow(two_turns()), grow(two_turns())], {"r0": 1.0})


def test_a_return_without_a_tree_is_refused():
    with pytest.raises(LearnerError, match=r"\['r9'\] have a return but no tree"):
        pack([grow(two_turns())], {"r0": 1.0, "r9": 1.0})


def test_a_worth_that_is_not_finite_is_refused():
    with pytest.raises(LearnerError, match=r"\['r0'\] is not finite"):
        pack([grow(two_turns())], {"r0": float("nan")})


def test_an_untrained_answer_decides_nothing_and_does_not_count():
    tree = grow(two_turns())
    segments = [replace(s, trained=s.trained and s.calls != ("c2",)) for s in tree.segments]
    batch = pack([replace(tree, segments=tuple(segments))], {"r0": 3.0})
    assert batch["decision"].nonzero().flatten().tolist() == [2, 3, 6]
    assert batch["weight"].tolist() == pytest.approx([1 / 3])
    assert batch["flat_tokens"].tolist() == [4 + 7]


@pytest.mark.parametrize("auxiliary", ["full", "drop"])
@pytest.mark.parametrize("seed", range(8))
def test_successors_are_those_that_the_calls_themselves_name(seed, auxiliary):
    rollouts = [random_rollout(seed * 3 + n, num_calls=14, vocab=2, rollout_id=f"r{n}") for n in range(3)]
    trees = [prune(grow(each), auxiliary=auxiliary) for each in rollouts]
    for packed in (trees, [merge(trees)], [merge(trees[::-1])]):
        batch = pack(packed, {"r0": 1.0, "r1": 1.0, "r2": 1.0})
        validate(batch)
        names = [name for tree in packed for name in tree.rollouts]
        for each, tree in zip(rollouts, trees, strict=True):
            assert found_successors(batch, names.index(each.id)) == named_successors(each, tree)


def found_successors(batch, rollout: int) -> list[tuple]:
    """(context with token, successor's context with token, whether both are of one answer) of each decision."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(batch["input_ids"].tolist(), batch["parent"].tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    offsets, decides = batch["owner_offsets"].tolist(), batch["decision"].tolist()
    owned = [token for token in range(len(paths)) for _ in range(offsets[token], offsets[token + 1])]
    found = []
    for token, owner, after, within in zip(owned, *columns(batch, "owners", "successor", "within"), strict=True):
        if owner == rollout and decides[token]:
            found.append((paths[token], paths[owned[after]] if after >= 0 else None, within))
    return sorted(found, key=repr)


def named_successors(each: Rollout, tree: Tree) -> list[tuple]:
    """The same without a tree: the first trained call, in time, whose path begins with the token's own."""
    trained = {segment.calls[0] for segment in tree.segments if segment.trained}
    calls = [each_call for each_call in each.calls if each_call.call_id in trained]
    found = []
    for each_call in calls:
        path = each_call.prompt_ids + each_call.sampled_ids
        for end in range(len(each_call.prompt_ids) + 1, len(path) + 1):
            if end < len(path):
                found.append((path[:end], path[: end + 1], True))
                continue
            after = next((c for c in calls if c.prompt_ids[:end] == path and follows(tree, c, each_call)), None)
            found.append((path, after.prompt_ids + after.sampled_ids[:1] if after else None, False))
    return sorted(found, key=repr)


def follows(tree: Tree, later: Call, earlier: Call) -> bool:
    """Whether the answer of `later` hangs below that of `earlier`, not below other tokens that read the same."""
    answers = {name: pieces for (_, name), pieces in tree.answers().items()}
    return tree.segments[answers[earlier.call_id][-1]] in tree.path(answers[later.call_id][0])


def test_the_order_of_calls_outlives_merging():
    def rollout_of(name: str, sub: int, main: int) -> Rollout:
        turns = [call("first", [1], [5]), *(call(f"to-{n}", [1, 5, n], [n]) for n in (sub, main))]
        return rollout(turns, name)

    trees = [grow(rollout_of("r0", 2, 3)), grow(rollout_of("r1", 3, 2))]
    batch = pack([merge(trees)], {"r0": 1.0, "r1": 1.0})
    for number, first in enumerate((2, 3)):
        after = {path: later for path, later, _ in found_successors(batch, number)}
        assert after[(1, 5)] == (1, 5, first, first)


def test_a_longer_branch_does_not_draw_the_successor_to_it():
    generator = random.Random(0)
    for _ in range(20):
        length = generator.randint(1, 5)
        turns = [call("c0", [1], [2]), call("early", [1, 2, 3], [4]), call("late", [1, 2, 5], [6] * length)]
        batch = pack([grow(rollout(turns))], {"r0": 1.0})
        after = {path: later for path, later, _ in found_successors(batch, 0)}
        assert after[(1, 2)] == (1, 2, 3, 4)


def test_experts_stand_beside_their_tokens_and_are_missing_where_nothing_is_told():
    def experts(*rows):
        return np.array([[[row, row + 1], [0, 1]] for row in rows], np.int16)

    assert "experts" not in pack([grow(two_turns())], {"r0": 1.0})
    told = rollout([call("c0", [1, 2], [3, 9], experts=experts(10, 11, 12))], "r1")
    batch = pack([grow(rollout([call("c0", [4], [5])])), grow(told)], {"r0": 1.0, "r1": -1.0})
    validate(batch)
    assert batch["experts"].shape == (6, 2, 2)
    assert batch["experts"][:, 0, 0].tolist() == [-1, -1, 10, 11, 12, -1]
    parts = list(split(batch, 4))
    assert [part.batch["experts"][:, 0, 0].tolist() for part in parts] == [[-1, -1], [10, 11, 12, -1]]
    narrow = with_columns(batch, experts=batch["experts"][:, 0])
    with pytest.raises(LearnerError, match=r"experts is torch.int16 \[6, 2\], not torch.int16 \[6, 0, 0\]"):
        validate(narrow)


def test_experts_of_two_models_in_one_batch_are_refused():
    trees = [
        grow(rollout([call("c0", [1, 2], [3], experts=np.zeros((2, layers, 2), np.int16))], f"r{layers}"))
        for layers in (1, 2)
    ]
    with pytest.raises(LearnerError, match="two models"):
        pack(trees, {"r1": 1.0, "r2": -1.0})
