"""A run's journal and a checkpoint -> the loss of one step, without gathering anything anew."""

import asyncio

from clawexp.batch.step_batch import packed, worth_of
from clawexp.demonstrations import read_demonstrations
from clawexp.learner.ranked_learner import open_learner
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.protocols import Imitating
from clawexp.run_folder import RunFolder
from clawexp.spec import Experiment
from clawexp.tree.tree import grow


def replayed_loss(experiment: Experiment, folder: RunFolder, step: int) -> float:
    """The loss of a step, from the journal and the checkpoint before it. Raises JournalError where calls are gone."""
    return asyncio.run(_replayed_loss(experiment, folder, step))


async def _replayed_loss(experiment: Experiment, folder: RunFolder, step: int) -> float:
    if isinstance(experiment.algo, Imitating):
        rollouts = read_demonstrations(experiment, experiment.algo).of_step(step)
    else:
        rollouts = folder.rollouts(step)
    trees = [grow(rollout) for rollout in rollouts if rollout.calls]
    batch = packed(experiment, trees, rollouts, worth_of(experiment, rollouts))
    base = checkpoint_folder(experiment.model.path)
    options, temperature = experiment.learner, experiment.capture.temperature
    async with open_learner(options, base, experiment.algo, temperature, folder.path) as learner:
        learner.resume(folder.checkpoint(step))
        return learner.evaluate_loss(batch)
