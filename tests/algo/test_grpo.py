import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clawexp.algo.grpo import Grpo
from clawexp.errors import LearnerError

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
    assert grpo().advantages([1.0, 0.0, 0.5], [GROUP] * 3, [True] * 3) == pytest.approx([0.75, -0.75, 0.0])


def test_the_group_mean_takes_the_mean_of_all():
    algo = grpo(baseline="group_mean")
    assert algo.advantages([1.0, 0.0, 0.5], [GROUP] * 3, [True] * 3) == pytest.approx([0.5, -0.5, 0.0])


def test_scaling_divides_by_the_deviation_but_not_by_less_than_its_floor():
    algo = grpo(baseline="group_mean", scale_by_std=True, std_floor=0.05)
    assert algo.advantages([1.0, 0.0], [GROUP] * 2, [True] * 2) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert algo.advantages([0.501, 0.499], [GROUP] * 2, [True] * 2) == pytest.approx([0.02, -0.02])


def test_groups_do_not_mix():
    other = ("task", "claude_code")
    assert grpo().advantages([1.0, 9.0, 0.0, 7.0], [GROUP, other, GROUP, other], [True] * 4) == [1, 2, -1, -2]


@pytest.mark.parametrize("rewards", [[0.3], [0.1, 0.1, 0.1]])
def test_a_group_without_spread_has_no_advantage(rewards):
    for baseline in ("leave_one_out", "group_mean"):
        algo = grpo(baseline=baseline, scale_by_std=True)
        assert algo.advantages(rewards, [GROUP] * len(rewards), [True] * len(rewards)) == [0.0] * len(rewards)


@given(
    rewards=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    place=st.integers(0, 6),
    reward=st.sampled_from([0.0, 1.0, math.nan, math.inf]),
    baseline=st.sampled_from(["leave_one_out", "group_mean"]),
    scale=st.booleans(),
)
def test_an_invalid_rollout_changes_nothing(rewards, place, reward, baseline, scale):
    algo = grpo(baseline=baseline, scale_by_std=scale)
    alone = algo.advantages(rewards, [GROUP] * len(rewards), [True] * len(rewards))
    place = min(place, len(rewards))
    more = [*rewards[:place], reward, *rewards[place:]]
    valid = [index != place for index in range(len(more))]
    beside = algo.advantages(more, [GROUP] * len(more), valid)
    assert beside.pop(place) == 0.0
    assert beside == alone


def test_a_valid_reward_that_is_not_a_number_is_refused():
    with pytest.raises(LearnerError, match=r"task task under builtin.*nan"):
        grpo().advantages([1.0, math.nan], [GROUP] * 2, [True] * 2)


def loss_of(algo, ratio, advantage, weight=0.0):
    """Loss and gradient with respect to logprob of one token."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(1, dtype=torch.float64)
    positive, negative = (torch.tensor([a], dtype=torch.float64) for a in (max(advantage, 0), min(advantage, 0)))
    loss, counts = algo.loss(logprob, old, old - weight, positive, negative)
    loss.backward()
    assert logprob.grad is not None
    return loss.item(), logprob.grad.item(), {name: count.item() for name, count in counts.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.5, 2.0, -2.56, 0.0, 1),
        (0.5, 2.0, -1.0, -1.0, 0),
        (1.5, -2.0, 3.0, 3.0, 0),
        (0.5, -2.0, 1.6, 0.0, 1),
    ],
)
def test_the_objective_is_clipped_on_the_side_where_it_would_gain(ratio, advantage, loss, gradient, clipped):
    found = loss_of(grpo(clip_low=0.2, clip_high=0.28), ratio, advantage)
    assert found == (pytest.approx(loss), pytest.approx(gradient), {"clipped": clipped, "truncated": 0})


def test_the_importance_weight_is_truncated_at_its_cap():
    algo = grpo(tis_cap=2.0)
    assert loss_of(algo, 1.0, 1.0, weight=math.log(1.5)) == (
        pytest.approx(-1.5),
        pytest.approx(-1.5),
        {"clipped": 0, "truncated": 0},
    )
    assert loss_of(algo, 1.0, 1.0, weight=50.0)[::2] == (pytest.approx(-2.0), {"clipped": 0, "truncated": 1})


@given(
    ratio=st.floats(0.3, 3),
    advantages=st.lists(st.floats(-2, 2), min_size=1, max_size=5),
)
def test_two_sums_of_advantages_stand_exactly_for_the_rollouts_of_a_shared_token(ratio, advantages):
    algo = grpo()
    separate = [loss_of(algo, ratio, advantage) for advantage in advantages]
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(1, dtype=torch.float64)
    positive = torch.tensor([sum(max(a, 0) for a in advantages)], dtype=torch.float64)
    negative = torch.tensor([sum(min(a, 0) for a in advantages)], dtype=torch.float64)
    loss, _ = algo.loss(logprob, old, old, positive, negative)
    loss.backward()
    assert logprob.grad is not None
    assert loss.item() == pytest.approx(sum(one[0] for one in separate), rel=1e-9, abs=1e-12)
    assert logprob.grad.item() == pytest.approx(sum(one[1] for one in separate), rel=1e-9, abs=1e-12)


def test_a_ratio_beyond_all_bounds_stays_finite():
    logprob = torch.tensor([-0.1], requires_grad=True)
    loss, _ = grpo().loss(logprob, torch.tensor([-400.0]), torch.tensor([-0.1]), torch.ones(1), torch.zeros(1))
    loss.backward()
    assert loss.isfinite()
    assert logprob.grad is not None
    assert logprob.grad.isfinite().all()
