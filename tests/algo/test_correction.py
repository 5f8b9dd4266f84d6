import math

import pytest
import torch

from clawexp.algo.correction import keeps, token_weight

# Three rollouts of 2, 4 and 0 tokens; a token that two of them share stands for each of them.
ROLLOUT = torch.tensor([0, 0, 1, 1, 1, 1])
LOG_RATIO = torch.tensor([0.2, -0.1, 0.1, 0.1, 0.1, -4.0])


def kept(reject=None, within=(0.99, 1.01), veto=None):
    return keeps((LOG_RATIO, ROLLOUT, 3), reject, within, veto).tolist()


def test_without_bounds_all_rollouts_are_kept():
    assert kept() == [True, True, True]


@pytest.mark.parametrize(
    ("reject", "first"), [("sequence", math.exp(0.1)), ("geometric", math.exp(0.05)), ("k3", (0.021403 + 0.004837) / 2)]
)
def test_a_rollout_is_kept_where_its_number_lies_within_the_bounds(reject, first):
    low = 0.0 if reject == "k3" else 0.9
    assert kept(reject, (low, first * 1.001)) == [True, False, True]
    assert kept(reject, (low, first * 0.999)) == [False, False, True]


def test_the_geometric_mean_does_not_depend_on_how_long_a_rollout_is():
    log_ratio = torch.full((40,), 0.009)
    tokens = (log_ratio, torch.zeros(40, dtype=torch.int64), 1)
    assert keeps(tokens, "geometric", (0.99, 1.01), None).tolist() == [True]
    assert keeps(tokens, "sequence", (0.99, 1.01), None).tolist() == [False]


def test_one_impossible_token_vetoes_its_rollout():
    assert kept(veto=0.02) == [True, False, True]
    assert kept(veto=0.018) == [True, True, True]


def test_a_weight_has_no_gradient_and_stays_finite():
    log_ratio = torch.tensor([500.0, -500.0, 0.0], requires_grad=True)
    weight, counts = token_weight(log_ratio, 2.0, (0.5, 3.0))
    assert not weight.requires_grad
    assert weight.tolist() == [0.0, 0.0, 1.0]
    assert (counts["truncated"].item(), counts["masked"].item()) == (1, 2)


@pytest.mark.parametrize(("reject", "low"), [("k3", 0.0), ("geometric", 0.99), ("sequence", 0.99)])
def test_rounding_alone_rejects_nobody(reject, low):
    log_ratio = 1e-6 * torch.sin(torch.arange(300.0))
    tokens = (log_ratio, torch.arange(300) % 3, 3)
    assert keeps(tokens, reject, (low, 1.01), 1e-4).all()
