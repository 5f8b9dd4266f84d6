"""What SLURM says of jobs. squeue knows the present and forgets; sacct remembers, where the cluster keeps accounts."""

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clawexp.errors import LauncherError

COMMENT = "clawexp:"
"""Jobs carry this and the folder that notes them, so that they are found from anywhere."""
FORGOTTEN = "FORGOTTEN"
"""Of a job that was there, and that neither squeue nor sacct knows any more."""
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT", FORGOTTEN),
    }
)
"""A job in any other state may still run."""
LIMIT_S = 60


@dataclass(frozen=True)
class Queued:
    """A job that squeue knows. `Queued("RUNNING", "None", Path("/home/me/runs/2026-11-29/101500-3f2a"))`"""

    state: str
    reason: str
    """Why it waits."""
    folder: Path | None
    """Where it is noted; None for a job that is not ours."""


def available() -> bool:
    """Whether this machine can submit to a cluster."""
    return all(shutil.which(program) for program in ("sbatch", "srun"))


def partitions() -> list[str]:
    """The names of the cluster's partitions; empty where it does not answer."""
    try:
        return sorted(set(_ask("sinfo", "--noheader", "--format=%R").split()))
    except LauncherError:
        return []


def queued() -> dict[str, Queued]:
    """This user's jobs by id, array tasks one by one. Raises LauncherError when the cluster does not answer."""
    lines = _ask("squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%r|%k").splitlines()
    found = {}
    for line in lines:
        job, state, reason, comment = line.split("|", 3)
        ours = comment.startswith(COMMENT)
        found[job] = Queued(state, reason, Path(comment.removeprefix(COMMENT)) if ours else None)
    return found


def states(jobs: Iterable[str], known: Mapping[str, Queued]) -> dict[str, str]:
    """The state of each job, as squeue knew it or as sacct remembers it; jobs that neither knows are missing."""
    wanted = set(jobs)
    found = {job: known[job].state for job in wanted if job in known}
    forgotten = wanted - set(found)
    if forgotten:
        try:
            found |= {job: state for job, state in _remembered(forgotten).items() if job in forgotten}
        except LauncherError:  # the cluster keeps no accounts
            return found
    return found


def _remembered(jobs: Iterable[str]) -> dict[str, str]:
    lines = _ask("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State",
                 f"--jobs={','.join(sorted(jobs))}").splitlines()  # fmt: skip
    pairs = (line.split("|") for line in lines)
    return {job: state.partition(" ")[0] for job, state in pairs}  # "CANCELLED by 1000"


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{argv[0]} did not answer: {error}") from error
    if done.returncode:
        raise LauncherError(f"{argv[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
