"""The runs that were handed to other processes: their state, how far each came, and where it is."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from clawexp.errors import ConfigError, LauncherError
from clawexp.launcher.job import Job, noted, noting_folders
from clawexp.launcher.queue import Queued, available, queued, states
from clawexp.launcher.subprocess import running

ROOT = Path("runs")
HEAD = ("job", "state", "step", "folder", "point")


def run(argv: Sequence[str]) -> int:
    """Print a line for every job below runs/, and for every job of this user that a cluster still knows."""
    if argv:
        raise ConfigError(f"jobs takes no arguments (it was given {' '.join(argv)})")
    known = _known()
    elsewhere = {job.folder for job in known.values() if job.folder is not None}
    here = [folder.absolute() for folder in noting_folders(ROOT)]
    jobs = [job for folder in [*here, *sorted(elsewhere - set(here))] for job in noted(folder)]
    if not jobs:
        print(f"no jobs below {ROOT}/; launcher=slurm and launcher=subprocess start them")
        return 0
    rows = [HEAD, *_rows(jobs, known)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _known() -> dict[str, Queued]:
    """What the cluster knows; nothing where there is none, or it does not answer."""
    if not available():
        return {}
    try:
        return queued()
    except LauncherError as error:
        print(f"{error}\nthe list shows what the folders of the runs tell", file=sys.stderr)
        return {}


def _rows(jobs: Sequence[Job], known: Mapping[str, Queued]) -> Iterator[tuple[str, ...]]:
    slurm = _slurm_states([job for job in jobs if job.launcher == "slurm"], known)
    for job in jobs:
        state = slurm.get(job.id) if job.launcher == "slurm" else "RUNNING" if running(job) else None
        state = state or ("COMPLETED" if job.finished else "ENDED")
        yield job.id, state, job.reached, _short(job.folder), " ".join(job.overrides)


def _slurm_states(jobs: Iterable[Job], known: Mapping[str, Queued]) -> dict[str, str]:
    """`RUNNING`, or `PENDING (Resources)`. An id is taken for ours only where its job names our folder."""
    if not available():
        return {}
    ours = {job.id: known[job.id] for job in jobs if job.id in known and known[job.id].folder == job.noted_in}
    waiting = {job: f"PENDING ({entry.reason})" for job, entry in ours.items() if entry.state == "PENDING"}
    return states([job.id for job in jobs if job.id not in known or job.id in ours], ours) | waiting


def _short(folder: str) -> str:
    path = Path(folder)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
