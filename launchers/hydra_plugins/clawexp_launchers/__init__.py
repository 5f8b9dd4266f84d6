"""The launcher that Hydra finds: it composes the points of a sweep and hands them to the experiment's own launcher.

Hydra accepts launcher plugins only from this namespace package, and imports them at every start: what is heavy stays
in `clawexp.launcher` until it is needed.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from clawexp.errors import ClawexpError, ConfigError
from clawexp.launcher.point import composed_points
from clawexp.launcher.sweep import launch


@dataclass
class Options:
    """None: what there is to choose stands in the experiment's own section, `launcher`."""

    _target_: str = "hydra_plugins.clawexp_launchers.ClawexpLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="clawexp", node=Options(), provider="clawexp")


class ClawexpLauncher(Launcher):
    """Makes nothing itself: see `clawexp.launcher`."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context = hydra_context
        self.task = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        points = composed_points(self.context, self.task, self.config, job_overrides, initial_job_idx)
        try:
            return launch(points, Path(str(self.config.hydra.sweep.dir)).absolute())
        except ClawexpError as error:
            sys.stderr.write(f"clawexp: {error}\n")
            sys.exit(2 if isinstance(error, ConfigError) else 1)
