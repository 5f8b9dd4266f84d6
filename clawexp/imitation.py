"""An experiment whose rollouts were made by earlier runs: draw, grow, pack, update, log. No engine and no sandbox."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDict

from clawexp.batch.step_batch import packed, worth_of
from clawexp.demonstrations import Demonstrations, read_demonstrations
from clawexp.environment import describe_environment
from clawexp.protocols import Imitating
from clawexp.records import Rollout
from clawexp.run_folder import RunFolder
from clawexp.spec import Experiment
from clawexp.stopping import run_until_stopped
from clawexp.training import WEIGHTS, Training, open_training
from clawexp.tree.tree import grow


class _Imitation:
    """One run while it is alive."""

    def __init__(self, training: Training, shown: Demonstrations) -> None:
        self._training, self._shown = training, shown
        self._experiment, self._folder, self._learner = training.experiment, training.folder, training.learner

    async def run(self) -> dict[str, float]:
        """From where the learner stands to the last step; the last metrics. Heeds a cancellation between steps."""
        last = self._folder.last_metrics()
        for step in range(self._learner.step, self._experiment.steps):
            await asyncio.sleep(0)
            before = self._score(step)
            rollouts = self._shown.of_step(step)
            found = self._learner.update(step_batch(self._experiment, rollouts))
            found |= {"rollout/count": float(len(rollouts)), "reward/mean": _mean_reward(rollouts)}
            loss = {"imitation/loss": found["learner/loss"]} if "learner/loss" in found else {}  # else it was skipped
            last = {**before, **found, **loss}
            self._log(step, last)
        end = self._score(self._experiment.steps)
        for sink in self._training.sinks:
            if end:
                sink.log(self._experiment.steps - 1, end)
            sink.summary({**last, **end})
        self._learner.export(self._folder.path / WEIGHTS)
        self._folder.finish()
        return {**last, **end}

    def _score(self, step: int) -> dict[str, float]:
        """The loss of what is held out: before the first step, every `eval.every` steps, after the last."""
        every = self._experiment.eval.every
        due = step in (0, self._experiment.steps) or (every and step % every == 0)
        if not due or not self._shown.held_out:
            return {}
        batch = step_batch(self._experiment, self._shown.held_out)
        if not batch["decision"].any():
            return {}
        return {"imitation/held_out_loss": self._learner.evaluate_loss(batch)}

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._folder.record(step, [], {}, metrics)
        for sink in self._training.sinks:
            sink.log(step, metrics)
        self._training.checkpoint_if_due(step + 1)


async def imitate(experiment: Experiment, folder: RunFolder, config: Mapping[str, Any]) -> dict[str, float]:
    """Run the experiment from where `folder` stands to its last step; the last metrics. Raises ConfigError."""
    assert isinstance(experiment.algo, Imitating)
    shown = read_demonstrations(experiment, experiment.algo)
    async with open_training(experiment, folder, config) as training:
        folder.note_environment({**describe_environment(experiment), "rendering": shown.rendering})
        try:
            return await _Imitation(training, shown).run()
        except asyncio.CancelledError:  # perhaps many steps after the newest checkpoint
            training.checkpoint(training.learner.step)
            raise


def step_batch(experiment: Experiment, rollouts: Sequence[Rollout]) -> TensorDict:
    """What is learned from these rollouts."""
    return packed(experiment, [grow(rollout) for rollout in rollouts], rollouts, worth_of(experiment, rollouts))


def imitate_until_done(experiment: Experiment, folder: RunFolder, config: Mapping[str, Any]) -> dict[str, float]:
    """`imitate` to its end, or to SIGINT or SIGTERM: then KeyboardInterrupt is raised."""
    return run_until_stopped(imitate(experiment, folder, config))


def _mean_reward(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward or 0.0 for rollout in rollouts) / len(rollouts)
