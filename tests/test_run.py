"""What a run decides by itself; runs as a whole are in tests/test_experiment.py."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from made_experts import upcycled
from safetensors.torch import load_file, save_file

from clawexp.capture.journal import read_calls
from clawexp.commands.compose import build, composed, resolved
from clawexp.engine.client import EngineClient
from clawexp.errors import EngineError
from clawexp.experiment import train
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.records import Scored
from clawexp.replay import replayed_loss
from clawexp.run import probe_ids
from clawexp.run_folder import RunFolder
from clawexp.spec import Engine, Model

SMALL = (
    *("num_tasks=1", "group_size=2", "eval.num_tasks=0", "logger=[jsonl]", "learner.threads=1", "capture.fsync=false"),
    *(
        "model.max_tokens=32",
        "harness.builtin.max_turns=2",
        "model.engine.start_s=300",
        "harness.builtin.timeout_s=600",
    ),
    *("rollout.settle_s=300", "rollout.sandbox_s=300", "rollout.grade_s=300"),
)


def test_the_probe_stays_within_the_vocabulary_and_reaches_across_it() -> None:
    ids = probe_ids(4096)
    assert all(0 <= token < 4096 for token in ids)
    assert len(set(ids)) > 50
    assert max(ids) - min(ids) > 3000
    assert all(0 <= token < 3 for token in probe_ids(3))


@dataclass
class Drifting:
    """A live engine whose weights are others as soon as it has answered the probe."""

    client: EngineClient
    folder: Path

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def key(self) -> str:
        return self.client.key

    async def load(self, path: Path, version: int) -> None:
        await self.client.load(path, version)
        self.version = version
        self.path = path

    async def score(self, ids: Sequence[int]) -> Scored:
        found = await self.client.score(ids)
        await self.client.load(perturbed(self.path, self.folder / "drifted"), self.version)
        return found


def perturbed(checkpoint: Path, folder: Path) -> Path:
    """The same model with its weights a little off."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: weight * (1 + 0.1 * torch.randn(weight.shape, generator=generator))
        for name, weight in load_file(checkpoint / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors")
    return folder


@dataclass(frozen=True)
class DriftingEngine:
    """An engine that serves `Drifting`."""

    real: Engine

    @asynccontextmanager
    async def serve(self, model: Model, seed: int, folder: Path) -> AsyncIterator[Drifting]:
        async with self.real.serve(model, seed, folder) as client:
            assert isinstance(client, EngineClient)
            yield Drifting(client, folder)


def test_a_run_whose_engine_samples_from_other_weights_stops_before_its_first_update(tmp_path: Path) -> None:
    config = composed([*SMALL, "steps=2"])
    experiment = build(config)
    model = replace(experiment.model, engine=DriftingEngine(experiment.model.engine))
    run = RunFolder(path=tmp_path / "run")
    run.path.mkdir()
    with pytest.raises(EngineError, match="before the update of step 0, engine and learner disagree") as caught:
        asyncio.run(train(replace(experiment, model=model), run, resolved(config)))
    said = str(caught.value)
    assert "rollout 00000-" in said
    assert "engine -" in said
    assert run.checkpoint_steps() == [0]
    assert not run.finished


def test_a_run_whose_engine_is_right_says_how_near_it_is(tmp_path: Path) -> None:
    config = composed([*SMALL, "steps=1"])
    run = RunFolder(path=tmp_path / "run")
    run.path.mkdir()
    asyncio.run(train(build(config), run, resolved(config)))
    found = run.steps()[0]["metrics"]
    assert 0 < found["parity/max_delta"] < 1e-3
    assert found["parity/mean_delta"] <= found["parity/max_delta"]


def test_a_mixture_of_experts_learns_by_the_experts_that_its_engine_used(tmp_path: Path) -> None:
    """From the engine's choice to the loss, by the journal; checked by the gate at each step."""
    checkpoint = upcycled(checkpoint_folder("package:tiny"), tmp_path / "experts")
    # With a bonus for entropy there is a loss even where all rewards are alike.
    words = (f"model.path={checkpoint}", "steps=2", "num_tasks=2", "parity.every=1", "algo.entropy_bonus=0.001")
    config = composed([*SMALL, *words])
    run = RunFolder(path=tmp_path / "run")
    run.path.mkdir()
    experiment = build(config)
    asyncio.run(train(experiment, run, resolved(config)))
    steps = run.steps()
    for step in (0, 1):
        found = steps[step]["metrics"]
        assert 0 < found["parity/max_delta"] < 1e-3
        assert found["learner/skipped"] == 0
    assert replayed_loss(experiment, run, 1) == pytest.approx(steps[1]["metrics"]["learner/loss"], abs=1e-6)
    calls = [read_calls(file) for file in sorted(run.calls.glob("0000*.log"))]
    later = [call for rollout in calls for call in rollout if call.cause == "continue"]
    assert later
    for call in later:  # what is new, and the parent's last token
        assert call.experts is not None
        assert call.experts.shape == (len(call.prompt_ids) - call.shared + len(call.sampled_ids), 4, 2)
