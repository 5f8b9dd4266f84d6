import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from clawexp.algo.sft import Sft
from clawexp.errors import LearnerError

OPTION = Path(__file__).parents[2] / "conf" / "algo" / "sft.yaml"
GROUP = ("task", "builtin")


def sft(**other: Any) -> Sft:
    fields = yaml.safe_load(OPTION.read_text())
    assert fields.pop("_target_") == "clawexp.algo.sft.Sft"
    return Sft(**fields | {"runs": ["runs/a"]} | other)


def test_the_option_is_complete_but_for_its_runs_and_its_module_needs_no_torch():
    sft()
    with pytest.raises(ValidationError, match="no run is named"):
        sft(runs=[])
    code = "import sys, clawexp.algo.sft; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_imitated_is_worth_the_same_whatever_its_reward_and_its_group():
    algo = sft(min_reward=0.5)
    assert algo.worth([1.0, 0.5, 0.4, 9.0], [GROUP] * 4, [True, True, True, False]) == [1, 1, 0, 0]


def test_a_reward_that_is_no_number_is_refused_where_it_is_read():
    assert sft().worth([float("nan")], [GROUP], [False]) == [0]
    with pytest.raises(LearnerError, match="the reward is nan"):
        sft().worth([float("nan")], [GROUP], [True])


def test_the_loss_is_the_weighted_cross_entropy_whoever_sampled():
    logprob = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    weight = torch.tensor([0.25, 0.5, 0.0])
    losses = [
        sft().loss(logprob, old, old, weight, torch.zeros(3))[0] for old in (logprob.detach(), torch.zeros(3) - 9)
    ]
    assert losses[0] == losses[1] == 0.25 * 1 + 0.5 * 2
    losses[0].backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == [-0.25, -0.5, 0]
