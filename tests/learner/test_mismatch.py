import pytest
import torch

from clawexp.learner.mismatch import mismatch


def test_mismatch_is_nothing_between_equals():
    logprob = torch.tensor([-0.1, -2.0, -0.7])
    assert mismatch(logprob, logprob) == pytest.approx(
        {
            "learner/kl_k3": 0,
            "learner/delta_logprob_mean": 0,
            "learner/delta_logprob_p999": 0,
            "learner/ess": 1,
            "learner/pearson": 1,
        }
    )


def test_mismatch_is_what_its_formulas_say():
    found = mismatch(torch.log(torch.tensor([0.5, 0.5])), torch.log(torch.tensor([0.25, 0.5])))
    assert found["learner/kl_k3"] == pytest.approx((0.5 - 1 + 0.6931472) / 2)
    assert found["learner/delta_logprob_mean"] == pytest.approx(0.6931472 / 2)
    assert found["learner/delta_logprob_p999"] == pytest.approx(0.6931472)
    assert found["learner/ess"] == pytest.approx(1.5**2 / (2 * 1.25))
    assert "learner/pearson" not in found
