"""What all sinks have in common."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from clawexp.logger.console import Console
from clawexp.logger.jsonl import Jsonl
from clawexp.logger.sink import Sink
from clawexp.logger.wandb import Wandb
from clawexp.protocols import Logger
from clawexp.records import Rollout

KINDS = {"wandb": Wandb, "jsonl": Jsonl, "console": Console}


def logger(name: str) -> Logger:
    """The logger that its option file describes."""
    option = OmegaConf.to_container(OmegaConf.load(Path("conf/logger") / f"{name}.yaml"))
    assert isinstance(option, dict)
    assert option.pop("_target_") == f"{KINDS[name].__module__}.{KINDS[name].__name__}"
    return KINDS[name](**{str(key): value for key, value in option.items()})


@pytest.mark.parametrize("name", KINDS)
async def test_a_logger_as_configured_takes_all_that_a_run_has_to_say(
    name: str, tmp_path: Path, rollout: Callable[..., Rollout]
) -> None:
    made = logger(name)
    assert isinstance(made, Logger)
    async with made.open(tmp_path, {"steps": 3, "seed": 0}, resume=False) as opened:
        sink: Sink = opened
        sink.rewind(0)
        for step in range(3):
            sink.log(step, {"reward/mean": 0.5, "outcome/completed": 2, "learner/loss": float("nan")})
            sink.rollouts(step, [rollout(0), rollout(1)])
        sink.summary({"eval/score": 0.5})


@pytest.mark.parametrize("name", KINDS)
def test_an_option_file_says_where_it_lands_and_how_it_is_used(name: str) -> None:
    text = (Path("conf/logger") / f"{name}.yaml").read_text()
    assert text.startswith(f"# @package logger.{name}\n# python -m clawexp ")
