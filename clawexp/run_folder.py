"""The folder of a run: what it was asked, how far it came, and what a later process needs to go on.

config.json        the composed experiment, resolved, without secrets
environment.json   versions, git state, machine, how conversations become tokens
calls/             the journal of model calls, one file per rollout (written by capture)
rollouts.log       the journal of rollouts, of the steps that consumed them and of evaluations (written by the driver)
weights/           what the engine was given last
checkpoints/       the newest few, `step-00012` = the learner before step 12
finished           present once the last step is done
lock               held by the process that runs the experiment
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clawexp.capture.journal import AppendLog, read_calls, read_records
from clawexp.errors import ConfigError, JournalError
from clawexp.logger.jsonl import finite
from clawexp.outcome import Outcome
from clawexp.records import Rollout, Verdict

IDENTITY_FREE = (
    *("resume", "steps", "logger", "launcher", "keep_checkpoints", "checkpoint_every", "hydra"),
    *("learner.token_budget", "learner.tree_pass", "learner.graph_gb", "learner.activation_checkpointing"),
    *("learner.threads", "rollout.max_concurrency", "rollout.memory_share"),
)
"""Keys that may change when a run is resumed: they change no number, or none beyond rounding."""
OTHER = "Its environment.json says which; go on with that one, or begin anew from its weights with model.path"
PLAIN = ("id", "task_id", "harness", "number", "seed", "reward", "reason", "times", "facts")
"""Fields of a rollout that are journalled as they are."""


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Paths and journal of one run."""

    path: Path

    @property
    def calls(self) -> Path:
        return self.path / "calls"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:05d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps whose learner is on disk, oldest first. A checkpoint appears by rename, so each is whole."""
        return sorted(int(p.name[5:]) for p in self.checkpoints.glob("step-*") if p.name[5:].isdigit())

    def prune_checkpoints(self, keep: int) -> None:
        for step in self.checkpoint_steps()[:-keep]:
            shutil.rmtree(self.checkpoint(step))

    @property
    def config(self) -> dict[str, Any]:
        """Raises ConfigError where it is damaged."""
        path = self.path / "config.json"
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise ConfigError(f"{path} is damaged ({error}); a run cannot be understood without it") from error

    @property
    def finished(self) -> bool:
        return (self.path / "finished").exists()

    @property
    def running(self) -> bool:
        """Whether a process runs the experiment now."""
        try:
            with self.held():
                return False
        except ConfigError:
            return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from running this experiment; the kernel lets go of it however this one ends.

        Raises ConfigError when another process holds it.
        """
        with (self.path / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"{self.path} is still run by another process; wait for it, or end it") from error
            yield

    def begin(self, config: Mapping[str, Any]) -> int:
        """Lay the folder out, or take it up where its newest checkpoint stands; the step to go on with."""
        self.calls.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        (self.path / "finished").unlink(missing_ok=True)
        write_whole(self.path / "config.json", json.dumps(config, indent=1))
        for left in self.checkpoints.glob(".step-*"):  # by a process that was killed while it wrote
            shutil.rmtree(left)
        steps = self.checkpoint_steps()
        start = steps[-1] if steps else 0
        self._rewind(start)
        return start

    def note_environment(self, environment: Mapping[str, Any]) -> None:
        """Keep what the run's surroundings are now.

        Raises ConfigError where conversations become other tokens than when the run began.
        """
        path = self.path / "environment.json"
        before = json.loads(path.read_text()) if path.is_file() else {}
        if self.checkpoint_steps()[-1:] > [0] and before.get("rendering") != environment["rendering"]:
            raise ConfigError(
                f"{self.path} began with another rendering of conversations ({before.get('rendering')}, now "
                f"{environment['rendering']}): a chat template, the tokenizer or the package `renderers` has changed. "
                "Bring it back to go on, or start anew."
            )
        write_whole(path, json.dumps(environment, indent=1))

    def finish(self) -> None:
        write_whole(self.path / "finished", "")

    def _rewind(self, start: int) -> None:
        """Drop what a killed process wrote of steps that will be done again."""
        for file in self.calls.iterdir():
            if step_of(file.stem) >= start:
                file.unlink()
        log = self.path / "rollouts.log"
        if log.exists():
            kept = [r for r in read_records(log) if r["step"] < start]
            fresh = self.path / "rollouts.log.new"
            fresh.unlink(missing_ok=True)
            with AppendLog(fresh, fsync=True) as new:
                new.extend(kept)
            fresh.replace(log)

    def record(
        self, step: int, rollouts: Sequence[Rollout], worth: Mapping[str, float], metrics: Mapping[str, float]
    ) -> None:
        """Journal what step `step` consumed, durably, as rollouts and then one line for the step."""
        lines = [
            {"kind": "rollout", "step": step, "worth": worth.get(rollout.id, 0.0), **_written(rollout)}
            for rollout in rollouts
        ]
        with AppendLog(self.path / "rollouts.log", fsync=True) as log:
            log.extend([*lines, {"kind": "step", "step": step, "version": step, "metrics": finite(metrics)}])

    def record_evaluation(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Journal an evaluation that was made before step `step`."""
        with AppendLog(self.path / "rollouts.log", fsync=True) as log:
            log.extend([{"kind": "evaluation", "step": step, **_written(rollout)} for rollout in rollouts])

    def steps(self) -> dict[int, dict[str, Any]]:
        """The step lines of the journal, by step."""
        return {r["step"]: r for r in self._records() if r["kind"] == "step"}

    def last_metrics(self) -> dict[str, float]:
        """Those of the last step that is journalled; a number that JSON cannot hold is missing. Empty before that."""
        steps = self.steps() if (self.path / "rollouts.log").exists() else {}
        metrics = steps[max(steps)]["metrics"] if steps else {}
        return {name: value for name, value in metrics.items() if value is not None}

    def rollouts(self, step: int) -> list[Rollout]:
        """The rollouts that a step consumed, with their calls read back. Raises JournalError when one is gone."""
        return [self._read(r) for r in self._records() if r["kind"] == "rollout" and r["step"] == step]

    def _records(self) -> list[dict[str, Any]]:
        log = self.path / "rollouts.log"
        if not log.exists():
            raise JournalError(f"{log}: the journal of rollouts is missing; is this the folder of a run?")
        return list(read_records(log))

    def _read(self, record: Mapping[str, Any]) -> Rollout:
        calls = tuple(read_calls(self.calls / f"{record['id']}.log")) if record["num_calls"] else ()
        if len(calls) != record["num_calls"]:
            raise JournalError(
                f"rollout {record['id']} made {record['num_calls']} calls; its journal holds {len(calls)}"
            )
        verdict = Verdict(**record["verdict"]) if record["verdict"] else None
        return Rollout(
            **{name: record[name] for name in (*PLAIN, "step")},
            outcome=Outcome(record["outcome"]),
            retried=tuple(Outcome(outcome) for outcome in record["retried"]),
            verdict=verdict,
            calls=calls,
        )


def _written(rollout: Rollout) -> dict[str, Any]:
    return {
        **{name: getattr(rollout, name) for name in PLAIN},
        "outcome": rollout.outcome,
        "retried": list(rollout.retried),
        "verdict": asdict(rollout.verdict) if rollout.verdict else None,
        "num_calls": len(rollout.calls),
    }


def step_of(rollout_id: str) -> int:
    """The step that a rollout's id names; that of an evaluation (`eval-00003-...`) is the step it came before."""
    return int(rollout_id.removeprefix("eval-").split("-", 1)[0])


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a later process, sees all of it or none."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def identity(config: Mapping[str, Any]) -> str:
    """A digest of what makes a run this run: its config without what may change on resume."""
    return hashlib.sha256(json.dumps(_leaves(config), sort_keys=True).encode()).hexdigest()[:16]


def run_folders(root: Path) -> list[RunFolder]:
    """Every run below `root`, newest first."""
    return [RunFolder(path=folder) for folder in folders_with(root, "config.json") if (folder / "calls").is_dir()]


def folders_with(root: Path, file: str) -> list[Path]:
    """The folders below `root` that have such a file, those with the newest first; never one inside of a run.

    What a live run renames or removes meanwhile is passed over.
    """
    found = []
    for folder, below, files in os.walk(root):
        if "calls" in below:
            below.clear()
        if file in files:
            with contextlib.suppress(FileNotFoundError):
                found.append((Path(folder, file).stat().st_mtime, Path(folder)))
    return [folder for _, folder in sorted(found, reverse=True)]


def find_run(resume: str, config: Mapping[str, Any], root: Path = Path("runs")) -> RunFolder:
    """The run that `resume` names: `auto` is the newest unfinished one of this experiment, anything else a folder.

    Raises ConfigError when there is none, when the folder's run is of another experiment, or when it still runs.
    """
    if resume == "auto":
        wanted = identity(config)
        for run in run_folders(root):
            with contextlib.suppress(ConfigError):  # of a damaged one nobody knows whose it is
                if not run.finished and identity(run.config) == wanted and not run.running:
                    return run
        raise ConfigError(
            f"resume=auto: no unfinished run of this experiment below {root}/ that no process runs. "
            f"Give the same overrides as then, or name the run: resume={root}/..."
        )
    run = RunFolder(path=Path(resume))
    if not (run.path / "config.json").is_file():
        raise ConfigError(f"resume={resume}: no run there (no config.json)")
    if identity(run.config) != identity(config):
        then, now = _leaves(run.config), _leaves(config)
        changed = sorted(key for key in {*then, *now} if then.get(key, "absent") != now.get(key, "absent"))
        fresh = ", ".join(key for key in changed if key not in then)
        why = f"; it knows nothing of {fresh}: was it made by another version of clawexp? {OTHER}" if fresh else ""
        raise ConfigError(f"resume={resume}: that run was another experiment; these differ: {', '.join(changed)}{why}")
    if run.running:
        raise ConfigError(f"resume={resume}: another process still runs it; wait for it, or end it")
    return run


def _leaves(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The values that make a config's identity, by dotted key, as JSON."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if f"{prefix}{key}" in IDENTITY_FREE:
            continue
        if isinstance(value, Mapping) and value:
            found |= _leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.dumps(value)
    return found
