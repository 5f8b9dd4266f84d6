import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import yaml
from enumerated_world import World, place_of, rollout_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clawexp.algo.grpo import Grpo
from clawexp.batch.batch import credited
from clawexp.batch.pack import pack
from clawexp.errors import LearnerError
from clawexp.tree.forest import prune
from clawexp.tree.tree import grow

OPTION = Path(__file__).parents[2] / "conf" / "algo" / "grpo.yaml"
GROUP = ("task", "builtin")


def grpo(**other: Any) -> Grpo:
    """The shipped option, with some keys changed."""
    fields = yaml.safe_load(OPTION.read_text())
    assert fields.pop("_target_") == "clawexp.algo.grpo.Grpo"
    return Grpo(**fields | other)


def test_the_option_is_complete_and_its_module_needs_no_torch():
    grpo()
    code = "import sys, clawexp.algo.grpo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("wrong", [{"clip_low": 1.5}, {"baseline": "critic"}, {"tis": 2.0}])
def test_a_wrong_option_is_refused(wrong):
    with pytest.raises(ValidationError):
        grpo(**wrong)


def test_leave_one_out_takes_the_mean_of_the_others():
    assert grpo().worth([1.0, 0.0, 0.5], [GROUP] * 3, [True] * 3) == pytest.approx([0.75, -0.75, 0.0])


def test_the_group_mean_takes_the_mean_of_all():
    algo = grpo(baseline="group_mean")
    assert algo.worth([1.0, 0.0, 0.5], [GROUP] * 3, [True] * 3) == pytest.approx([0.5, -0.5, 0.0])


def test_scaling_divides_by_the_deviation_but_not_by_less_than_its_floor():
    algo = grpo(baseline="group_mean", scale_by_std=True, std_floor=0.05)
    assert algo.worth([1.0, 0.0], [GROUP] * 2, [True] * 2) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert algo.worth([0.501, 0.499], [GROUP] * 2, [True] * 2) == pytest.approx([0.02, -0.02])


def test_groups_do_not_mix():
    other = ("task", "claude_code")
    assert grpo().worth([1.0, 9.0, 0.0, 7.0], [GROUP, other, GROUP, other], [True] * 4) == [1, 2, -1, -2]


@pytest.mark.parametrize("rewards", [[0.3], [0.1, 0.1, 0.1]])
def test_a_group_without_spread_has_no_advantage(rewards):
    for baseline in ("leave_one_out", "group_mean"):
        algo = grpo(baseline=baseline, scale_by_std=True)
        assert algo.worth(rewards, [GROUP] * len(rewards), [True] * len(rewards)) == [0.0] * len(rewards)


@given(
    rewards=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    place=st.integers(0, 6),
    reward=st.sampled_from([0.0, 1.0, math.nan, math.inf]),
    baseline=st.sampled_from(["leave_one_out", "group_mean"]),
    scale=st.booleans(),
)
def test_an_invalid_rollout_changes_nothing(rewards, place, reward, baseline, scale):
    algo = grpo(baseline=baseline, scale_by_std=scale)
    alone = algo.worth(rewards, [GROUP] * len(rewards), [True] * len(rewards))
    place = min(place, len(rewards))
    more = [*rewards[:place], reward, *rewards[place:]]
    valid = [index != place for index in range(len(more))]
    beside = algo.worth(more, [GROUP] * len(more), valid)
    assert beside.pop(place) == 0.0
    assert beside == alone


def test_a_valid_reward_that_is_not_a_number_is_refused():
    with pytest.raises(LearnerError, match=r"task task under builtin.*nan"):
        grpo().worth([1.0, math.nan], [GROUP] * 2, [True] * 2)


def test_the_loss_is_clipped_and_truncated_as_the_option_says():
    algo = grpo(clip_low=0.1, clip_high=0.4, tis_cap=1.25)
    logprob, old = torch.tensor([0.5, -0.5]).log1p(), torch.zeros(2)
    positive, negative = torch.tensor([1.0, 0.0]), torch.tensor([0.0, -1.0])
    loss, counts = algo.loss(logprob, old, old - 1, positive, negative)
    assert loss.item() == pytest.approx(1.25 * (-1.4 + 0.9))
    assert {name: count.item() for name, count in counts.items()} == {"clipped": 2, "truncated": 2}


def test_without_a_critic_a_rollout_has_one_advantage():
    assert grpo().critic is None


class GroupsOfTwo:
    """The mean gradient over all pairs of episodes, on trees and with advantages as a step would make them."""

    def __init__(self) -> None:
        self.world = World()
        self.episodes = self.world.episodes
        rewards = np.array([reward for _, _, reward in self.episodes])
        chances = np.array([chance for chance, _, _ in self.episodes])
        worth = [
            [grpo().worth([one, other], [GROUP] * 2, [True] * 2)[0] for other in rewards.tolist()]
            for one in rewards.tolist()
        ]
        self.worth = np.array(worth) @ chances
        """Of each episode, the mean over what it is paired with."""

    def bias(self, auxiliary: Literal["full", "drop"] | float, normaliser: Literal["constant", "rollout"]) -> float:
        """Of the direction, relative to the true gradient: the scale is the learning rate's."""
        found, true = np.zeros(8), np.zeros(8)
        weight = auxiliary if isinstance(auxiliary, float) else 1.0
        for (chance, steps, reward), worth in zip(self.episodes, self.worth.tolist(), strict=True):
            made = rollout_of(steps)
            tree = prune(grow(made), auxiliary=auxiliary)
            batch = pack([tree], {"r0": worth}, normaliser, constant_tokens=1, auxiliary_weight=weight)
            batch = credited(batch, batch["worth"][batch["owners"]])
            credit = (batch["positive"] + batch["negative"]).double()
            for step, each in zip(steps, made.calls, strict=True):
                path = each.prompt_ids + each.sampled_ids
                if each.call_id in {own for segment in tree.segments if segment.trained for own in segment.calls}:
                    found += chance * credit[place_of(batch, path)].item() * self.world.gradient(*step)
                true += chance * reward * self.world.gradient(*step)
        return float(np.linalg.norm(found / np.linalg.norm(found) - true / np.linalg.norm(true)))


@pytest.fixture(scope="module")
def groups() -> GroupsOfTwo:
    return GroupsOfTwo()


def test_with_all_calls_in_the_loss_the_gradient_is_exact(groups):
    assert groups.bias("full", "constant") < 1e-6  # P and N are float32


def test_without_auxiliary_calls_it_is_bent_and_with_a_weight_less_so(groups):
    dropped, weighed = groups.bias("drop", "constant"), groups.bias(0.5, "constant")
    assert dropped > weighed > 1e-2


def test_with_rollouts_that_count_alike_however_long_they_are_it_is_bent_a_little(groups):
    assert 1e-3 < groups.bias("full", "rollout") < 0.5 * groups.bias("drop", "constant")
