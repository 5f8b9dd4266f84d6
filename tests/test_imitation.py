"""From the journal of a run to another that starts from what was learned of it, each as a user starts it."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from omegaconf import OmegaConf

from clawexp.commands.compose import build, composed, resolved
from clawexp.demonstrations import read_demonstrations
from clawexp.errors import ConfigError
from clawexp.imitation import imitate_until_done, step_batch
from clawexp.learner.learner import Learner
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.protocols import Imitating
from clawexp.replay import replayed_loss
from clawexp.run_folder import RunFolder

SMALL = (
    "num_tasks=8",
    "group_size=1",
    "eval.num_tasks=0",
    "logger=[jsonl]",
    "learner.threads=1",
    "capture.fsync=false",
)
LEARN = (
    "algo=sft",
    "algo.held_out=0.3",
    "algo.batch_rollouts=3",
    "algo.lr=2e-4",
    "logger=[jsonl]",
    "learner.threads=1",
)

WholeRun = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def taught(whole_run_in: WholeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a script in the model's place, `shown`, and one that learned from it, `learned`."""
    folder = tmp_path_factory.mktemp("taught")
    for words in (
        ("model=scripted", "steps=1", "hydra.run.dir=shown", *SMALL),
        ("algo.runs=[shown]", "steps=4", "eval.every=2", "hydra.run.dir=learned", *LEARN),
    ):
        done = whole_run_in(folder, *words)
        assert done.returncode == 0, done.stderr
    return folder


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_that_starts_from_what_was_learned_finds_the_recorded_answers_likelier(
    taught: Path, whole_run_in: WholeRun
) -> None:
    done = whole_run_in(
        taught, f"model.path={taught}/learned/weights", "steps=1", "hydra.run.dir=next", *SMALL, "num_tasks=1"
    )
    assert done.returncode == 0, done.stderr
    experiment = build(composed(["algo=sft", f"algo.runs=[{taught}/shown]"]))
    assert isinstance(experiment.algo, Imitating)
    shown = read_demonstrations(experiment, experiment.algo)
    batch = step_batch(experiment, [*shown.train, *shown.held_out])
    before, after = (
        Learner(experiment.learner, start, experiment.algo, 1.0).evaluate_loss(batch)
        for start in (checkpoint_folder("package:tiny"), RunFolder(path=taught / "next").checkpoint(0))
    )
    assert after < 0.95 * before


def test_the_loss_falls_also_on_tasks_that_are_held_out(taught: Path) -> None:
    found = lines(taught / "learned")
    held_out = [line["imitation/held_out_loss"] for line in found if "imitation/held_out_loss" in line]
    losses = [line["imitation/loss"] for line in found if "imitation/loss" in line]
    assert len(losses) == 4
    assert len(held_out) == 3
    assert losses[-1] < losses[0]
    assert held_out[-1] < held_out[0]


def test_a_step_of_it_replays(taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(taught)
    run = RunFolder(path=taught / "learned")
    assert run.checkpoint_steps() == [3, 4]
    experiment = build(OmegaConf.create(run.config))
    assert replayed_loss(experiment, run, 3) == pytest.approx(lines(run.path)[-2]["imitation/loss"], rel=1e-6)


def test_it_goes_on_to_the_bit(taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(taught)
    run = RunFolder(path=taught / "half")
    run.path.mkdir()
    for steps in (2, 4):
        config = composed([*LEARN, "algo.runs=[shown]", "eval.every=2", f"steps={steps}"])
        imitate_until_done(build(config), run, resolved(config))
    weights = [taught / name / "weights" / "model.safetensors" for name in ("learned", "half")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["algo.runs=[nowhere]"], "nowhere is not the folder of a run"),
        (["algo.runs=[shown]", "model.rendering=template"], "conversations became other tokens"),
        (["algo.runs=[shown]", "algo.min_reward=2"], "lower algo.min_reward"),
    ],
)
def test_journals_that_cannot_be_imitated_are_refused_and_nothing_is_made(
    taught: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(taught)
    config = composed([*LEARN, *words])
    with pytest.raises(ConfigError, match=reason):
        imitate_until_done(build(config), RunFolder(path=tmp_path / "refused"), resolved(config))
    assert not list(tmp_path.iterdir())
