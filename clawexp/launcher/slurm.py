"""Jobs of a SLURM cluster: a sweep as one array, a single run as one job, requeued until it is done."""

import logging
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from clawexp.cache import say
from clawexp.component import component
from clawexp.errors import ConfigError, LauncherError
from clawexp.launcher.job import Job, note
from clawexp.launcher.point import Point
from clawexp.launcher.queue import ENDED, FORGOTTEN, available, queued, states
from clawexp.spec import Positive, Seconds

log = logging.getLogger(__name__)


@component
class Slurm:
    """What each job asks of the cluster, and whether this process waits for them."""

    partition: str | None
    account: str | None
    qos: str | None
    time_min: Positive
    """Limit of one job. A run that needs longer is stopped in time, requeued, and goes on."""
    cpus: Positive
    memory_gb: Annotated[float, Field(gt=0)] | None
    gpus: Annotated[int, Field(ge=0)]
    parallel: Positive
    """Jobs of one sweep at once."""
    signal_s: Positive
    """So long before the limit a run is told to stop."""
    requeues: Annotated[int, Field(ge=0)]
    """At the time limit. Preemptions count only in jobs of ten minutes or less, which cannot tell the two apart."""
    setup: list[str]
    """Lines of shell that run before Python."""
    extra: list[Annotated[str, Field(pattern=r"^--[a-z]")]]
    """Further options of sbatch: `["--constraint=a100", "--exclusive"]`"""
    wait: bool
    poll_s: Seconds

    @model_validator(mode="after")
    def _told_in_time(self) -> "Slurm":
        if self.signal_s >= 60 * self.time_min:
            raise ValueError(f"signal_s: {self.signal_s} s before a limit of {self.time_min} min is before the start")
        return self

    def plan(self, num_points: int, folder: Path) -> str:
        """The script that sbatch would be given. Raises ConfigError without Submitit."""
        return _submission().script(self, num_points, folder)

    def launch(self, points: Sequence[Point], folder: Path) -> list[str | None]:
        """Submit, and wait where `wait` says so: each point's error, None for one that is done, or not waited for.

        Raises ConfigError where the cluster takes no job.
        """
        submission = _submission()
        if not available():
            raise ConfigError(
                "launcher=slurm: sbatch and srun are not on PATH; start this on a machine that submits to a cluster, "
                "or choose launcher=subprocess"
            )
        jobs = submission.submit(self, points, folder)
        note(jobs, folder)
        number, _, task = jobs[0].id.partition("_")
        look = f"look: python -m clawexp jobs; cancel: scancel {number}"
        say(f"submitted {f'an array of {len(jobs)}' if task else 'one job'}: {number}; {look}")
        if not self.wait:
            return [None] * len(jobs)
        try:
            return self._watch(jobs)
        except KeyboardInterrupt:
            say(f"no longer waiting; the jobs go on. {look} (launcher.wait=false does not wait at all)")
            raise

    def _watch(self, jobs: Sequence[Job]) -> list[str | None]:
        """Tell of every change until all have ended; the error of each."""
        seen: dict[str, str] = {}
        while True:
            try:
                now = states([job.id for job in jobs], queued())
            except LauncherError as error:  # a busy controller is no reason to give its jobs up
                log.warning("%s; asking again", error)
            else:
                now = {job: now.get(job, FORGOTTEN) for job in {*now, *seen}}
                for job in (job for job in jobs if now.get(job.id) != seen.get(job.id)):
                    say(" ".join(filter(None, (job.id, now[job.id], job.reached, job.folder))))
                seen = now
                if len(seen) == len(jobs) and ENDED.issuperset(seen.values()):
                    return [_error(job, seen[job.id]) for job in jobs]
            time.sleep(self.poll_s)


def _error(job: Job, state: str) -> str | None:
    if state == "COMPLETED" or (state == FORGOTTEN and job.finished):
        return None
    return f"{job.name} ended {state}: {job.last_words()}\n  its log: {job.log}"


def _submission() -> Any:
    """The part that needs Submitit, which is an extra and takes a second to import."""
    if find_spec("submitit") is None:
        raise ConfigError("launcher=slurm needs Submitit: pip install 'clawexp[slurm]'")
    from clawexp.launcher import submission

    return submission
