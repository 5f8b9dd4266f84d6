"""Journals of earlier runs -> rollouts to imitate, those of each step, and those that are held out."""

import hashlib
import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clawexp.capture.rendering import open_rendering
from clawexp.errors import ConfigError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.outcome import TRAINED
from clawexp.protocols import Imitating
from clawexp.records import Rollout
from clawexp.run_folder import RunFolder
from clawexp.spec import Experiment

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """What is imitated. Made by `read_demonstrations`."""

    train: tuple[Rollout, ...]
    held_out: tuple[Rollout, ...]
    """Of tasks that none of `train` is of."""
    rendering: str
    """Digest of how their conversations became tokens."""
    batch_rollouts: int
    seed: int

    def of_step(self, step: int) -> list[Rollout]:
        """Pass after pass through all of `train`, each in an order of its own; the same on every resume."""
        size = min(self.batch_rollouts, len(self.train))
        places = range(step * size, (step + 1) * size)
        orders = {turn: self._order(turn) for turn in {place // len(self.train) for place in places}}
        chosen = dict.fromkeys(orders[place // len(self.train)][place % len(self.train)] for place in places)
        return [self.train[index] for index in chosen]

    def _order(self, turn: int) -> list[int]:
        indices = list(range(len(self.train)))
        random.Random(f"{self.seed} {turn}").shuffle(indices)
        return indices


def read_demonstrations(experiment: Experiment, algo: Imitating) -> Demonstrations:
    """Rollouts with a high enough reward, each conversation once. Evaluations are no part of them.

    Raises ConfigError where a folder holds no run, where its conversations became tokens in another way than they do
    for the model that shall learn them, or where nothing is left to imitate; JournalError where calls are gone.
    """
    rendering = open_rendering(checkpoint_folder(experiment.model.path), experiment.model.rendering).digest
    found: dict[object, Rollout] = {}
    seen = 0
    for number, name in enumerate(algo.runs):
        folder = _run(Path(name), rendering, experiment.model.path)
        for rollout in _good(folder, experiment, algo.min_reward):
            seen += 1
            # Of the model that showed it, whose experts are not those of the model that imitates.
            calls = tuple(replace(call, experts=None) for call in rollout.calls)
            found.setdefault(_gist(rollout), replace(rollout, id=f"{number}/{rollout.id}", calls=calls))
    if not found:
        raise ConfigError(
            f"algo.runs: none of the rollouts of {', '.join(algo.runs)} has a reward of {algo.min_reward:g} or more; "
            "lower algo.min_reward, or name other runs"
        )
    held_out = _held_out([rollout.task_id for rollout in found.values()], algo.held_out)
    log.info(
        "%d rollouts to imitate; %d tasks held out; %d repeat others", len(found), len(held_out), seen - len(found)
    )
    return Demonstrations(
        train=tuple(rollout for rollout in found.values() if rollout.task_id not in held_out),
        held_out=tuple(rollout for rollout in found.values() if rollout.task_id in held_out),
        rendering=rendering,
        batch_rollouts=algo.batch_rollouts,
        seed=experiment.seed,
    )


def _run(path: Path, rendering: str, model_path: str) -> RunFolder:
    """Raises ConfigError."""
    file = path / "environment.json"
    if not file.is_file() or not (path / "calls").is_dir():
        raise ConfigError(f"algo.runs: {path} is not the folder of a run (no environment.json, or no calls)")
    theirs = json.loads(file.read_text()).get("rendering")
    if theirs != rendering:
        raise ConfigError(
            f"algo.runs: in {path} conversations became other tokens than they do for {model_path} (rendering "
            f"{theirs}, here {rendering}): the tokenizer, the chat template, model.rendering or the package "
            "`renderers` is another. Name runs of a model with the same ones, or make them anew with this model."
        )
    return RunFolder(path=path)


def _good(folder: RunFolder, experiment: Experiment, min_reward: float) -> Iterator[Rollout]:
    for step in sorted(folder.steps()):
        for rollout in folder.rollouts(step):
            trained = experiment.outcome[rollout.outcome] in TRAINED
            if trained and rollout.calls and rollout.reward is not None and rollout.reward >= min_reward:
                yield rollout


def _gist(rollout: Rollout) -> object:
    """Equal where the same was said to the same."""
    return rollout.task_id, rollout.harness, tuple((call.prompt_ids, call.sampled_ids) for call in rollout.calls)


def _held_out(tasks: Sequence[str], share: float) -> set[str]:
    """So many of the tasks, at least one where there are two; which ones depends on their names alone."""
    names = sorted(set(tasks), key=lambda name: hashlib.sha256(name.encode()).digest())
    count = max(1, round(share * len(names))) if share and len(names) > 1 else 0
    return set(names[: min(count, len(names) - 1)])
