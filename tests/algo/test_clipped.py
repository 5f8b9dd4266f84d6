import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clawexp.algo.clipped import clipped_loss


def loss_of(ratio, advantages, weight=0.0):
    """Loss and gradient with respect to logprob of one token that rollouts with these advantages share."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(1, dtype=torch.float64)
    positive, negative = (torch.tensor([sum(part)], dtype=torch.float64) for part in signs(advantages))
    loss, counts = clipped_loss((logprob, old, old - weight), (positive, negative), (0.2, 0.28), 2.0)
    loss.backward()
    assert logprob.grad is not None
    return loss.item(), logprob.grad.item(), {name: count.item() for name, count in counts.items()}


def signs(advantages):
    return [max(a, 0.0) for a in advantages], [min(a, 0.0) for a in advantages]


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
    found = loss_of(ratio, [advantage])
    assert found == (pytest.approx(loss), pytest.approx(gradient), {"clipped": clipped, "truncated": 0})


def test_the_importance_weight_is_truncated_at_its_cap():
    free = loss_of(1.0, [1.0], weight=math.log(1.5))
    assert free == (pytest.approx(-1.5), pytest.approx(-1.5), {"clipped": 0, "truncated": 0})
    assert loss_of(1.0, [1.0], weight=50.0)[::2] == (pytest.approx(-2.0), {"clipped": 0, "truncated": 1})


@given(ratio=st.floats(0.3, 3), advantages=st.lists(st.floats(-2, 2), min_size=1, max_size=5))
def test_two_sums_of_advantages_stand_exactly_for_the_rollouts_of_a_shared_token(ratio, advantages):
    separate = [loss_of(ratio, [advantage]) for advantage in advantages]
    loss, gradient, _ = loss_of(ratio, advantages)
    assert loss == pytest.approx(sum(one[0] for one in separate), rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(sum(one[1] for one in separate), rel=1e-9, abs=1e-12)


def test_a_ratio_beyond_all_bounds_stays_finite():
    logprob = torch.tensor([-0.1], requires_grad=True)
    logprobs, credit = (logprob, torch.tensor([-400.0]), torch.tensor([-0.1])), (torch.ones(1), torch.zeros(1))
    loss, _ = clipped_loss(logprobs, credit, (0.2, 0.28), 2.0)
    loss.backward()
    assert loss.isfinite()
    assert logprob.grad is not None
    assert logprob.grad.isfinite().all()
