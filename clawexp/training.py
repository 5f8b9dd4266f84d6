"""What every experiment that trains holds while it runs: its folder, its learner, its loggers."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from clawexp.learner.learner import Learner
from clawexp.learner.ranked_learner import RankedLearner, open_learner
from clawexp.logger.sink import Sink
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.run_folder import RunFolder
from clawexp.spec import Experiment

WEIGHTS = "weights"
"""The folder of a run with the learner's newest weights; another run may name it as its `model.path`."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Live. Made by `open_training`."""

    experiment: Experiment
    folder: RunFolder
    start: int
    """The first step that is still to be done."""
    learner: Learner | RankedLearner
    sinks: Sequence[Sink]

    def checkpoint(self, step: int) -> None:
        """Keep the learner as it stands after so many steps, unless that is done.

        Where it is a step further already, nothing is kept: that step will be done again.
        """
        if self.learner.step == step and step not in self.folder.checkpoint_steps():
            self.learner.save(self.folder.checkpoint(step))
            self.folder.prune_checkpoints(self.experiment.keep_checkpoints)

    def checkpoint_if_due(self, done: int) -> None:
        """After so many steps: every `checkpoint_every`, and at the end."""
        if done % self.experiment.checkpoint_every == 0 or done == self.experiment.steps:
            self.checkpoint(done)


@asynccontextmanager
async def open_training(
    experiment: Experiment, folder: RunFolder, config: Mapping[str, Any]
) -> AsyncIterator[Training]:
    """From the newest checkpoint where there is one; loggers forget what is done again.

    Raises ConfigError where another process runs the experiment of this folder.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(folder.held())
        start = folder.begin(config)
        base = checkpoint_folder(experiment.model.path)
        learner = await stack.enter_async_context(
            open_learner(experiment.learner, base, experiment.algo, experiment.capture.temperature, folder.path)
        )
        if start:
            learner.resume(folder.checkpoint(start))
        else:
            learner.save(folder.checkpoint(0))
        sinks = [
            await stack.enter_async_context(each.open(folder.path, config, start > 0))
            for each in experiment.logger.values()
        ]
        if start:
            for sink in sinks:
                sink.rewind(start)
        yield Training(experiment=experiment, folder=folder, start=start, learner=learner, sinks=sinks)
