"""A point of a sweep, composed here, run by another process: `python -m clawexp.launcher.point FILE`.

What is shipped is the composed experiment, not the command line: a job that starts, or is requeued, hours later runs
what was asked for, whatever happened to the option files meanwhile.
"""

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.utils import JobRuntime, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


@dataclass(frozen=True, kw_only=True)
class Point:
    """One experiment, ready to be pickled. Made by `composed_points`."""

    number: int
    """Its place in the sweep, from 0."""
    overrides: tuple[str, ...]
    """By which it differs from the other points of its sweep: `("algo.lr=1e-4",)`; none where there is no other."""
    folder: Path
    """The folder of its run, absolute."""
    config: DictConfig
    """The composed experiment with Hydra's own section."""
    context: HydraContext
    task: TaskFunction

    def run(self) -> dict[str, float]:
        """Run it, or go on with what its folder holds; the last metrics.

        Raises CompactHydraException for an error whose message has been printed, KeyboardInterrupt when stopped.
        """
        setup_globals()
        JobRuntime.instance().set("name", self.config.hydra.job.name)
        config = self.config.copy()
        if (self.folder / "config.json").is_file():
            config.resume = str(self.folder)
        done = run_job(
            task_function=self.task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=self.context,
        )
        return done.return_value  # raises what the task raised


def composed_points(
    context: HydraContext, task: TaskFunction, config: DictConfig, sweep: Sequence[Sequence[str]], first: int
) -> list[Point]:
    """The points that these overrides of a sweep's config make, numbered from `first`."""
    shared = set.intersection(*map(set, sweep)) if len(sweep) > 1 else set(sweep[0])
    points = []
    for number, overrides in enumerate(sweep, first):
        composed = _composed(context, config, overrides, number)
        points.append(
            Point(
                number=number,
                overrides=tuple(override for override in overrides if override not in shared),
                folder=(Path(str(composed.hydra.sweep.dir)) / str(composed.hydra.sweep.subdir)).absolute(),
                config=composed,
                context=context,
                task=task,
            )
        )
    return points


def _composed(context: HydraContext, config: DictConfig, overrides: Sequence[str], number: int) -> DictConfig:
    composed = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(composed):
        composed.hydra.job.id = str(number)
        composed.hydra.job.num = number
    return composed


def main(file: str) -> int:
    """Run the point that is pickled in `file`; the exit status."""
    point: Point = pickle.loads(Path(file).read_bytes())
    try:
        point.run()
    except CompactHydraException:
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
