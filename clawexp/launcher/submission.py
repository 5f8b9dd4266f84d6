"""Points -> jobs of a cluster, through Submitit.

A job is one batch step without srun, whose shell becomes Python: so the warning signal reaches this process alone,
and neither the engine nor a harness dies of it. The run stops as it does on Ctrl-C, everything alive is closed, and
Submitit requeues the job; the next start goes on in the same folder.
"""

import contextlib
import io
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.errors import CompactHydraException
from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import DelayedSubmission

from clawexp.errors import ConfigError
from clawexp.launcher.job import FILE, Job
from clawexp.launcher.point import Point
from clawexp.launcher.queue import COMMENT, partitions
from clawexp.launcher.slurm import Slurm

WARNING = signal.SIGUSR2
"""What Submitit requeues a job on."""


class BatchStep:
    """What a job runs: a point, until it is done or told to go."""

    def __init__(self, point: Point) -> None:
        self.point = point

    def __call__(self) -> None:
        requeue = signal.getsignal(WARNING)
        told: list[int] = []

        def stop(number: int, frame: FrameType | None) -> None:
            if not told:  # a second signal would break off the cleaning up
                told.append(number)
                signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (WARNING, signal.SIGTERM):
            signal.signal(number, stop)
        try:
            self.point.run()
        except CompactHydraException:  # its message has been printed
            sys.exit(1)
        except KeyboardInterrupt:
            if told != [WARNING]:
                sys.exit(130)
            signal.signal(WARNING, requeue)
            signal.raise_signal(WARNING)

    def checkpoint(self) -> DelayedSubmission:
        """Called by Submitit before it requeues the job. All there is to keep is in the run's folder by then."""
        return DelayedSubmission(self)


class Executor(SlurmExecutor):
    """Submitit's, able to show its script where there is no cluster."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def script(self, num_points: int) -> str:
        if num_points > 1:
            self.parameters["map_count"] = num_points
        return self._make_submission_file_text(self._submitit_command_str, "")


def script(options: Slurm, num_points: int, folder: Path) -> str:
    """What sbatch would be given."""
    return _executor(options, folder).script(num_points)


def submit(options: Slurm, points: Sequence[Point], folder: Path) -> list[Job]:
    """One array, or one job. Raises ConfigError when the cluster refuses."""
    executor = _executor(options, folder)
    try:
        # Submitit prints what sbatch says, and raises it too.
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            submitted = [executor.submit(BatchStep(point)) for point in points]
    except (FailedJobError, FailedSubmissionError) as error:
        if not (folder / FILE).exists():
            shutil.rmtree(_files(folder))
        raise ConfigError(_refusal(str(error))) from error
    return [
        Job(
            launcher="slurm",
            id=job.job_id,
            folder=str(point.folder),
            log=str(job.paths.stdout),
            overrides=point.overrides,
        )
        for job, point in zip(submitted, points, strict=True)
    ]


def _files(folder: Path) -> Path:
    return folder / "slurm"


def _executor(options: Slurm, folder: Path) -> Executor:
    executor = Executor(_files(folder), max_num_timeout=options.requeues, python=f"exec {shlex.quote(sys.executable)}")
    chosen: dict[str, Any] = {
        "time": options.time_min,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "cpus_per_task": options.cpus,
        "mem": options.memory_gb,
        "gpus_per_node": options.gpus or None,
    }
    executor.update_parameters(
        **{name: value for name, value in chosen.items() if value is not None},
        job_name="clawexp",
        wckey=None,
        array_parallelism=options.parallel,
        # Until Python has its handler the warning is ignored: by default it would end the job for good.
        setup=[f"trap '' {WARNING.name.removeprefix('SIG')}", *options.setup],
        stderr_to_stdout=True,
        use_srun=False,
        additional_parameters={
            "signal": f"B:{WARNING.name.removeprefix('SIG')}@{options.signal_s}",
            "requeue": True,
            "comment": f"{COMMENT}{folder}",
            **_further(options.extra),
        },
    )
    return executor


def _further(options: Sequence[str]) -> dict[str, str | bool]:
    """`["--nodelist=n0", "--exclusive"]` -> `{"nodelist": "n0", "exclusive": True}`"""
    pairs = (option.removeprefix("--").partition("=") for option in options)
    return {name: value if equals else True for name, equals, value in pairs}


def _refusal(said: str) -> str:
    """One message of what sbatch printed."""
    lines = [line.removeprefix("sbatch: error: ").removeprefix("Batch job submission failed: ")
             for line in said.splitlines()]  # fmt: skip
    text = f"launcher=slurm: the cluster refused the job: {'; '.join(lines)}"
    if "partition" in text:
        text += f". Choose launcher.partition among {', '.join(partitions()) or 'those that sinfo shows'}"
    return text
