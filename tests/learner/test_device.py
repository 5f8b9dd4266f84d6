from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from clawexp.errors import ConfigError
from clawexp.learner.device import device_of, take_gpu
from clawexp.spec import LearnerOptions

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture
def options() -> LearnerOptions:
    fields = yaml.safe_load((CONF / "learner/default.yaml").read_text())
    del fields["_target_"]
    return LearnerOptions(**fields)


@pytest.mark.parametrize(
    ("device", "gpus", "found"), [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda", 2, "cuda")]
)
def test_a_gpu_is_taken_where_there_is_one_and_the_cpu_where_it_is_asked_for(
    options: LearnerOptions, monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, found: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    assert device_of(replace(options, device=device)).type == found


def test_a_gpu_that_is_not_there_is_missed_by_name(options: LearnerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"learner\.device=cuda: torch finds no GPU"):
        device_of(replace(options, device="cuda"))


def test_each_rank_has_a_gpu_of_its_own(options: LearnerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert take_gpu(replace(options, device="auto", num_ranks=2), 1).type == "cuda"
    assert taken == [1]
    with pytest.raises(ConfigError, match=r"num_ranks=3: torch finds 2 GPUs"):
        take_gpu(replace(options, device="cuda", num_ranks=3), 0)
