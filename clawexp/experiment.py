"""An experiment, run: gather, grow, pack, update, load, log. This loop is the whole system; the rooms do the work."""

from collections.abc import Mapping
from typing import Any

from clawexp.run import open_run
from clawexp.run_folder import RunFolder
from clawexp.runtime.remains import telling_remains
from clawexp.spec import Experiment
from clawexp.stopping import run_until_stopped
from clawexp.tree.tree import grow


async def train(experiment: Experiment, folder: RunFolder, config: Mapping[str, Any]) -> dict[str, float]:
    """Run the experiment from where `folder` stands to its last step; the last metrics."""
    async with open_run(experiment, folder, config) as run:
        await run.evaluate(run.start)
        for step in range(run.start, experiment.steps):
            rollouts = await run.gather(step)  # tasks -> calls and rewards
            trees = [grow(rollout) for rollout in rollouts if rollout.calls]  # calls -> prefix trees
            batch = run.pack(trees, rollouts)  # trees -> tensors
            run.check_parity(step, batch, rollouts)
            metrics = run.learner.update(batch)  # tensors -> weights
            await run.load(version=step + 1)  # weights -> engine
            run.log(step, rollouts, metrics)
            await run.evaluate(step + 1)
        return run.finish()


def train_until_done(experiment: Experiment, folder: RunFolder, config: Mapping[str, Any]) -> dict[str, float]:
    """`train` to its end, or to SIGINT or SIGTERM: then everything alive is closed and KeyboardInterrupt is raised."""
    with telling_remains():
        return run_until_stopped(train(experiment, folder, config))
