"""Held-out tasks through the harness, the boundary and the engine, without a learner."""

from pathlib import Path

from clawexp.attempt import evaluation_attempts
from clawexp.metrics import measure_evaluation
from clawexp.rollout import gather
from clawexp.run import open_site
from clawexp.runtime.reaper import sweep
from clawexp.runtime.remains import telling_remains
from clawexp.scratch import scratch_folder, scratch_root
from clawexp.spec import Experiment
from clawexp.stopping import run_until_stopped


async def evaluate(experiment: Experiment, weights: Path | None) -> dict[str, float]:
    """Metrics of `eval.rollouts` attempts at each held-out task, by `weights` or by the model as it ships."""
    sweep(scratch_root())
    with scratch_folder("eval-") as folder:
        async with experiment.model.engine.serve(experiment.model, experiment.seed, folder) as engine:
            if weights is not None:
                await engine.load(weights, 1)
            async with open_site(experiment, folder, engine) as site:
                return measure_evaluation(await gather(evaluation_attempts(experiment, step=0), site))


def evaluate_until_done(experiment: Experiment, weights: Path | None) -> dict[str, float]:
    with telling_remains():
        return run_until_stopped(evaluate(experiment, weights))
