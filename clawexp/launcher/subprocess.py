"""Child processes of this one: the points of a sweep side by side, without a cluster."""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from clawexp.component import component
from clawexp.launcher.job import Job, note
from clawexp.launcher.point import Point
from clawexp.runtime import leash
from clawexp.spec import Positive


@component
class Subprocess:
    """How many at once. They end with this process: stopped where it is stopped, killed where it is killed."""

    parallel: Positive

    def plan(self, num_points: int, folder: Path) -> str:
        """The command of the first point."""
        command = " ".join(_command(folder / "subprocess" / "0.pkl"))
        return f"{num_points} child processes, {self.parallel} at once, the first: {command}"

    def launch(self, points: Sequence[Point], folder: Path) -> list[str | None]:
        """Run every point to its end; its error, None for one that is done. KeyboardInterrupt stops those that run."""
        try:
            return asyncio.run(self._run(points, folder))
        except asyncio.CancelledError as error:
            raise KeyboardInterrupt from error

    async def _run(self, points: Sequence[Point], folder: Path) -> list[str | None]:
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        slots = asyncio.Semaphore(self.parallel)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_run_point(point, folder, slots)) for point in points]
        return [task.result() for task in tasks]


def running(job: Job) -> bool:
    """Whether the process of this job is still there: one of its id that was given its file."""
    try:
        arguments = Path(f"/proc/{job.id}/cmdline").read_bytes()
    except OSError:
        return False
    return str(Path(job.log).with_suffix(".pkl")).encode() in arguments


def _command(file: Path) -> list[str]:
    return [sys.executable, "-m", "clawexp.launcher.point", str(file)]


async def _run_point(point: Point, folder: Path, slots: asyncio.Semaphore) -> str | None:
    file = folder / "subprocess" / f"{point.number}.pkl"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(pickle.dumps(point))
    async with slots:
        with file.with_suffix(".log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *_command(file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # of a Ctrl-C it hears once, from here
            )
        job = Job(
            launcher="subprocess",
            id=str(process.pid),
            folder=str(point.folder),
            log=str(file.with_suffix(".log")),
            overrides=point.overrides,
        )
        note([job], folder)
        sys.stderr.write(f"{job.name}: started; {point.folder}\n")
        return await _ended(process, job)


async def _ended(process: asyncio.subprocess.Process, job: Job) -> str | None:
    """Wait for the end; the error, if there is one. A cancelled wait stops the run first."""
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        sys.stderr.write(f"{job.name}: {job.last_words()}\n")
        raise
    if code:
        return f"{job.name} ended with status {code}: {job.last_words()}\n  its log: {job.log}"
    sys.stderr.write(f"{job.name}: done\n")
    return None
