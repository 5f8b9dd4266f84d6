import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clawexp.algo.grpo import Grpo
from clawexp.algo.surrogate import Surrogate

OPTION = Path(__file__).parents[2] / "conf" / "algo" / "grpo.yaml"


def surrogate(**other: Any) -> Surrogate:
    """That of the shipped option, with some keys changed."""
    fields = yaml.safe_load(OPTION.read_text())
    del fields["_target_"]
    return Grpo(**fields | other)


def loss_of(ratio, advantages, weight=0.0, **other):
    """Loss and gradient with respect to logprob of one token that rollouts with these advantages share."""
    logprob = torch.tensor([math.log(ratio) - 1], dtype=torch.float64, requires_grad=True)
    old = torch.full((1,), -1.0, dtype=torch.float64)
    positive, negative = (torch.tensor([sum(part)], dtype=torch.float64) for part in signs(advantages))
    loss, counts = surrogate(**other).loss(logprob, old, old - weight, positive, negative)
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


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient", "clipped"),
    [(1.0, 2.0, -2.0, 0), (1.5, 2.0, -2.56, 1), (0.5, 2.0, -1.6, 1), (1.5, -2.0, 2.56, 1), (0.5, -2.0, 1.6, 1)],
)
def test_cispo_clips_the_weight_of_a_token_and_never_its_gradient(ratio, advantage, gradient, clipped):
    _, found, counts = loss_of(ratio, [advantage], objective="cispo")
    assert (found, counts["clipped"]) == (pytest.approx(gradient), clipped)


@pytest.mark.parametrize(
    ("advantage", "ratio", "left"),
    [(2.0, 1.1, 2.2), (2.0, 1.4, 0.0), (2.0, 0.5, 1.0), (-2.0, 0.9, -1.8), (-2.0, 0.7, 0.0), (-2.0, 1.5, -3.0)],
)
def test_gspo_clips_a_rollout_on_the_side_where_it_would_gain(advantage, ratio, left):
    algo = surrogate(objective="gspo")
    found = algo.clipped_advantage(torch.tensor([advantage]), torch.tensor([ratio]))
    assert found.tolist() == pytest.approx([left])
    assert algo.sequence_ratio
    _, gradient, counts = loss_of(1.7, [left], objective="gspo")  # the token's own ratio does not matter
    assert (gradient, counts["clipped"]) == (pytest.approx(-left), 0)


def test_at_the_old_policy_all_objectives_have_one_gradient():
    gradients = [loss_of(1.0, [0.5, -2.0], objective=name)[1] for name in ("clipped", "cispo", "gspo")]
    assert gradients == pytest.approx([1.5] * 3)


def test_the_importance_weight_is_truncated_at_its_cap():
    free = loss_of(1.0, [1.0], weight=math.log(1.5))
    assert free == (pytest.approx(-1.5), pytest.approx(-1.5), {"clipped": 0, "truncated": 0})
    assert loss_of(1.0, [1.0], weight=50.0)[::2] == (pytest.approx(-2.0), {"clipped": 0, "truncated": 1})


def test_a_token_outside_of_the_band_carries_no_loss():
    inside, outside = (loss_of(1.0, [1.0], weight=x, token_band=[0.5, 1.8]) for x in (math.log(1.7), math.log(1.9)))
    assert inside == (pytest.approx(-1.7), pytest.approx(-1.7), {"clipped": 0, "truncated": 0, "masked": 0})
    assert outside == (0.0, 0.0, {"clipped": 0, "truncated": 0, "masked": 1})


@pytest.mark.parametrize("objective", ["clipped", "cispo", "gspo"])
@given(ratio=st.floats(0.3, 3), advantages=st.lists(st.floats(-2, 2), min_size=1, max_size=5))
def test_two_sums_of_advantages_stand_exactly_for_the_rollouts_of_a_shared_token(objective, ratio, advantages):
    separate = [loss_of(ratio, [advantage], objective=objective) for advantage in advantages]
    loss, gradient, _ = loss_of(ratio, advantages, objective=objective)
    assert loss == pytest.approx(sum(one[0] for one in separate), rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(sum(one[1] for one in separate), rel=1e-9, abs=1e-12)


def test_a_ratio_beyond_all_bounds_stays_finite():
    logprob = torch.tensor([-0.1], requires_grad=True)
    old, behaviour, one = torch.tensor([-400.0]), torch.tensor([-0.1]), torch.ones(1)
    loss, _ = surrogate(reference_kl=0.1).loss(logprob, old, behaviour, one, one * 0, one, torch.tensor([-400.0]))
    loss.backward()
    assert loss.isfinite()
    assert logprob.grad is not None
    assert logprob.grad.isfinite().all()


class Softmax:
    """A choice among five tokens, and the mean of the loss of what is sampled from it."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.logits = torch.randn(5, generator=draw, dtype=torch.float64).requires_grad_()
        self.reference = torch.randn(5, generator=draw, dtype=torch.float64).log_softmax(0)

    def mean(self, behaviour_shift: float = 0.0, **other: Any) -> tuple[float, torch.Tensor]:
        logprob = self.logits.log_softmax(0)
        now = logprob.detach()
        # What was sampled with other chances than pi's is weighed back by w, which no cap cuts here.
        behaviour = (now + behaviour_shift * self.reference).log_softmax(0)
        algo = surrogate(tis_cap=100.0, **other)
        none = torch.zeros(5, dtype=torch.float64)
        reference = self.reference if algo.reference_kl else None
        loss, _ = algo.loss(logprob, now, behaviour, none, none, behaviour.exp(), reference)
        (gradient,) = torch.autograd.grad(loss, self.logits)
        return loss.item(), gradient

    def exact(self, figure) -> tuple[float, torch.Tensor]:
        value = figure(self.logits.log_softmax(0))
        (gradient,) = torch.autograd.grad(value, self.logits)
        return value.item(), gradient


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_pull_to_the_reference_is_the_divergence_from_it_in_value_and_gradient(shift):
    choice = Softmax()
    loss, gradient = choice.mean(shift, reference_kl=0.25)
    want, slope = choice.exact(lambda logprob: 0.25 * (logprob.exp() * (logprob - choice.reference)).sum())
    assert loss == pytest.approx(want)
    torch.testing.assert_close(gradient, slope)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_entropy_bonus_is_the_entropy_in_value_and_gradient(shift):
    choice = Softmax()
    loss, gradient = choice.mean(shift, entropy_bonus=0.1)
    want, slope = choice.exact(lambda logprob: 0.1 * (logprob.exp() * logprob).sum())
    assert loss == pytest.approx(want)
    torch.testing.assert_close(gradient, slope)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"token_band": [1.1, 2.0]}, "token_band is"),
        ({"reject": "geometric", "reject_within": [0.0, 0.01]}, "for a ratio it goes from at most 1"),
        ({"reject": "k3"}, "for k3, which is 0 at best"),
        ({"objective": "ppo"}, "objective"),
        ({"auxiliary": 1.5}, "auxiliary"),
        ({"updates": 0}, "updates"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(ValidationError, match=words):
        surrogate(**wrong)
