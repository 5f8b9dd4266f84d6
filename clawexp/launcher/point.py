"""A point of a sweep, composed here, run by another process: `python -m clawexp.launcher.point FILE`.

What is shipped is the composed experiment, not the command line: a job that starts, or is requeued, hours later runs
what was asked for, whatever happened to the option files meanwhile.
"""

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import filter_overrides, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


@dataclass(frozen=True, kw_only=True)
class Point:
    """One experiment, ready to be pickled. Made by `composed_point`."""

    number: int
    """Its place in the sweep, from 0."""
    overrides: tuple[str, ...]
    """`("algo.lr=1e-4",)`"""
    folder: Path
    """The folder of its run, absolute."""
    config: DictConfig
    """The composed experiment with Hydra's own section."""
    context: HydraContext
    task: TaskFunction
    singletons: dict[Any, Any]
    """State of Hydra that the config's interpolations need."""

    def run(self) -> dict[str, float]:
        """Run it, or go on with what its folder holds; the last metrics.

        Raises CompactHydraException for an error whose message has been printed, KeyboardInterrupt when stopped.
        """
        Singleton.set_state(self.singletons)
        setup_globals()
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


def composed_point(
    context: HydraContext, task: TaskFunction, config: DictConfig, overrides: Sequence[str], number: int
) -> Point:
    """The point of a sweep that these overrides of its config make."""
    composed = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(composed):
        composed.hydra.job.id = str(number)
        composed.hydra.job.num = number
    sweep = OmegaConf.select(composed, "hydra.sweep")
    return Point(
        number=number,
        overrides=tuple(filter_overrides(overrides)),
        folder=(Path(str(sweep.dir)) / str(sweep.subdir)).absolute(),
        config=composed,
        context=context,
        task=task,
        singletons=Singleton.get_state(),
    )


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
