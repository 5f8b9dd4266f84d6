"""Jobs that were started, noted beside their runs: `jobs.jsonl`, one line a job."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from clawexp.run_folder import RunFolder, folders_with

FILE = "jobs.jsonl"
TAIL_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run, handed to another process.

    Job(launcher="slurm", id="12_0", folder="/home/me/runs/2026-11-29/101500-3f2a/0",
        log="/home/me/runs/2026-11-29/101500-3f2a/slurm/12_0_0_log.out", overrides=("algo.lr=1e-4",))
    """

    launcher: str
    id: str
    """As the cluster writes it; the process id where there is no cluster."""
    folder: str
    """Of the run."""
    log: str
    """What the process said."""
    overrides: tuple[str, ...]
    """By which it differs from the other points of its sweep."""

    @property
    def name(self) -> str:
        """For messages: `job 12_0 (algo.lr=1e-4)`"""
        return f"job {self.id} ({' '.join(self.overrides)})" if self.overrides else f"job {self.id}"

    @property
    def noted_in(self) -> Path:
        """The sweep's folder; logs lie in a folder of their own in it."""
        return Path(self.log).parents[1]

    @property
    def finished(self) -> bool:
        return RunFolder(path=Path(self.folder)).finished

    @property
    def reached(self) -> str:
        """The step that its newest checkpoint stands before, and how many there shall be: `2/3`; empty before that."""
        run = RunFolder(path=Path(self.folder))
        steps = run.checkpoint_steps()
        return f"{steps[-1]}/{run.config['steps']}" if steps else ""

    def last_words(self) -> str:
        """What it printed as clawexp's own last line; where there is none, the end of its log."""
        path = Path(self.log)
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        said = [line.removeprefix("clawexp: ") for line in lines if line.startswith("clawexp: ")]
        return said[-1] if said else "\n".join(lines[-TAIL_LINES:])


def note(jobs: Sequence[Job], folder: Path) -> None:
    """Append to the jobs of this folder."""
    with (folder / FILE).open("a") as file:
        file.writelines(json.dumps(asdict(job)) + "\n" for job in jobs)


def noted(folder: Path) -> Iterator[Job]:
    """The jobs of this folder, oldest first; none where it has none. A line that is being written is left out."""
    path = folder / FILE
    if not path.is_file():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            fields = json.loads(line)
            yield Job(**{**fields, "overrides": tuple(fields["overrides"])})


def noting_folders(root: Path) -> list[Path]:
    """Every folder below `root` that notes jobs, the newest first."""
    return folders_with(root, FILE)
