"""Composed points -> their launcher, and what became of each in Hydra's terms."""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.utils import instantiate
from omegaconf import open_dict

from clawexp.launcher.point import Point
from clawexp.protocols import Launcher
from clawexp.spec import Experiment


def launch(points: Sequence[Point], folder: Path) -> list[JobReturn]:
    """Run every point through the launcher that the experiment names; `folder` is the sweep's.

    Raises ConfigError or LauncherError where nothing could be started, ClawexpError where a part cannot be fetched.
    """
    launcher: Launcher = instantiate(points[0].config.launcher, _convert_="all")
    _prepare(points)
    folder.mkdir(parents=True, exist_ok=True)
    errors = launcher.launch(points, folder)
    return [_returned(point, error) for point, error in zip(points, errors, strict=True)]


def _prepare(points: Sequence[Point]) -> None:
    """Fetch what the points need here and now: where the jobs run there may be no network, and they are many."""
    for point in points:
        config = point.config.copy()
        with open_dict(config):
            del config["hydra"]
        experiment: Experiment = instantiate(config, _convert_="all")
        experiment.prepare()


def _returned(point: Point, error: str | None) -> JobReturn:
    """Hydra prints the first error without a traceback, and ends with status 1."""
    failed = JobStatus.FAILED if error else JobStatus.COMPLETED
    value = CompactHydraException(f"clawexp: {error}") if error else str(point.folder)
    return JobReturn(overrides=point.overrides, status=failed, _return_value=value)
