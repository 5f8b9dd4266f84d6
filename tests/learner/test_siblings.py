"""Credit beside other answers to the same prompt, with values worked out by hand."""

import math

import pytest
import torch
from made_rollouts import call, random_rollout, rollout
from tensordict import TensorDict

from clawexp.batch.pack import pack
from clawexp.learner.siblings import beside_siblings
from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import grow

HALF = math.sqrt(2)


def group() -> TensorDict:
    """Of three rollouts: r0 and r1 begin with the same answer 3 and go on differently, r2 answers 4 at first."""
    one = rollout([call("a0", [1, 2], [3]), call("a1", [1, 2, 3, 9], [5, 6])], "r0")
    two = rollout([call("b0", [1, 2], [3]), call("b1", [1, 2, 3, 9], [5, 7])], "r1")
    three = rollout([call("c0", [1, 2], [4]), call("c1", [1, 2, 4, 8], [5])], "r2")
    return pack([merge([grow(each) for each in (one, two, three)])], {"r0": 1.0, "r1": -0.25, "r2": -0.75})


def credit(batch: TensorDict, advantage: torch.Tensor) -> dict[tuple[int, int, int], float]:
    """(id before, id, owner) -> advantage, of the tokens that decide."""
    found = {}
    token = owned(batch)
    for index in batch["decision"][token].nonzero().flatten().tolist():
        before = batch["parent"][token[index]]
        ids = batch["input_ids"][torch.stack([before, token[index]])].tolist()
        found[*ids, int(batch["owners"][index])] = float(advantage[index])
    return found


def owned(batch: TensorDict) -> torch.Tensor:
    return torch.arange(len(batch["input_ids"])).repeat_interleave(batch["owner_offsets"].diff())


def test_an_anchor_adds_how_a_rollout_ends_beside_others_that_were_asked_the_same():
    assert credit(group(), beside_siblings(group(), "anchor", 0.5)) == pytest.approx(
        {
            # At the first prompt all three answer, whose mean is 0.
            (2, 3, 0): 1 + 0.5 * 1,
            (2, 3, 1): -0.25 + 0.5 * -0.25,
            (2, 4, 2): -0.75 + 0.5 * -0.75,
            # At the second, r0 and r1, whose mean is 0.375; nobody else was asked what r2 was.
            (9, 5, 0): 1 + 0.5 * (1 - 0.375),
            (9, 5, 1): -0.25 + 0.5 * (-0.25 - 0.375),
            (5, 6, 0): 1 + 0.5 * (1 - 0.375),
            (5, 7, 1): -0.25 + 0.5 * (-0.25 - 0.375),
            (8, 5, 2): -0.75,
        }
    )


def test_a_tree_gives_all_rollouts_of_a_token_what_they_are_worth_together():
    found = credit(group(), beside_siblings(group(), "tree", 1.0))
    # r0 and r1 are worth 0.375 in the mean; before the first answer the mean is 0, before the second 0.375.
    assert found[2, 3, 0] == found[2, 3, 1] == pytest.approx((0.375 + 0.375) / HALF)
    assert found[9, 5, 0] == found[9, 5, 1] == pytest.approx((0.375 + 0) / HALF)
    assert found[5, 6, 0] == pytest.approx(1 + (1 - 0.375))
    assert found[8, 5, 2] == pytest.approx(-0.75)


@pytest.mark.parametrize("mode", ["anchor", "tree"])
def test_whose_longer_prompt_passes_through_another_answered_no_such_prompt(mode):
    one = rollout([call("a0", [1, 2], [3])], "r0")
    two = rollout([call("b0", [1, 2, 5, 6], [4])], "r1")
    batch = pack([merge([grow(one), grow(two)])], {"r0": 1.0, "r1": -0.5})
    assert credit(batch, beside_siblings(batch, mode, 1.0)) == {(2, 3, 0): 1.0, (6, 4, 1): -0.5}


@pytest.mark.parametrize("mode", ["anchor", "tree"])
def test_a_batch_without_rollouts_has_no_credit(mode):
    assert beside_siblings(pack([], {}), mode, 1.0).tolist() == []


@pytest.mark.parametrize("mode", ["anchor", "tree"])
@pytest.mark.parametrize("seed", range(8))
def test_branches_that_a_harness_made_are_no_siblings(mode, seed):
    batch = pack([prune(grow(random_rollout(seed)), auxiliary="full")], {"r0": 0.5})
    assert beside_siblings(batch, mode, 1.0)[batch["decision"][owned(batch)]].tolist() == pytest.approx(
        [0.5] * int(batch["decision"].sum())
    )


@pytest.mark.parametrize("mode", ["anchor", "tree"])
def test_a_rollout_that_is_not_valid_changes_nothing(mode):
    one = rollout([call("a0", [1, 2], [3])], "r0")
    two = rollout([call("b0", [1, 2], [4])], "r1")
    three = rollout([call("c0", [1, 2], [5])], "r2")
    worth = {"r0": 0.5, "r1": -0.5}
    without = pack([merge([grow(one), grow(two)])], worth)
    beside = pack([merge([grow(one), grow(two), grow(three)])], worth)
    taken = [beside_siblings(b, mode, 1.0)[b["decision"][owned(b)]].tolist() for b in (without, beside)]
    assert taken[0] == taken[1] == [1.0, -1.0]
