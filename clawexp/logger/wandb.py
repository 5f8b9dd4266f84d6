"""Metrics, the config and small tables of rollouts in Weights & Biases; offline unless told otherwise.

All that W&B writes lies in `RUN/wandb`. `wandb leet RUN/wandb` shows it in a terminal, and
`wandb sync RUN/wandb/offline-run-*` sends it to a server. Every row carries `step`, the x axis of all charts,
so that a resumed run may do a step again; its rows go to the same W&B run.
"""

import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import wandb

from clawexp.component import component
from clawexp.errors import ConfigError
from clawexp.outcome import Outcome
from clawexp.records import Rollout
from clawexp.redact import redact
from clawexp.spec import Positive

COLUMNS = ("task", "harness", "reward", "outcome", "calls", "tokens", "seconds", "reason")
REASON_LETTERS = 200
FLUSH_S = 1.0
"""A kill loses the rows of so many seconds."""


@component
class Wandb:
    """One W&B run per run."""

    mode: Literal["offline", "online"]
    project: str
    name: str | None
    group: str | None
    tags: tuple[str, ...]
    table_every: Positive
    """Steps between tables of rollouts."""
    table_rows: Positive
    """Rollouts in a table, at most; those that did not complete come first."""

    @asynccontextmanager
    async def open(self, run: Path, config: Mapping[str, Any], resume: bool) -> AsyncIterator["WandbSink"]:
        folder = run / "wandb"
        folder.mkdir(exist_ok=True)
        with _files_in(folder):
            live = self._start(run, _run_id(folder, resume), config, resume)
            exit_code = 1
            try:
                yield WandbSink(live, self.table_every, self.table_rows)
                exit_code = 0
            finally:
                live.finish(exit_code=exit_code)
                wandb.teardown()

    def _start(self, run: Path, run_id: str, config: Mapping[str, Any], resume: bool) -> wandb.Run:
        try:
            live = wandb.init(
                dir=run,
                mode=self.mode,
                project=self.project,
                name=self.name or run.name,
                group=self.group,
                tags=self.tags,
                id=run_id,
                # Offline there is no server to ask; the id alone joins the pieces.
                resume="allow" if resume and self.mode == "online" else None,
                config=redact(config),
                settings=_settings(),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"W&B could not start in mode {self.mode}: {error}. "
                "Log in with `wandb login`, or set logger.wandb.mode=offline."
            ) from error
        live.define_metric("step", hidden=True)
        live.define_metric("*", step_metric="step")
        return live


class WandbSink:
    """A live W&B run."""

    def __init__(self, live: wandb.Run, table_every: int, table_rows: int) -> None:
        self._live = live
        self._table_every = table_every
        self._table_rows = table_rows

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._live.log({"step": step, **metrics})

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        if step % self._table_every == 0 and rollouts:
            first = sorted(rollouts, key=lambda rollout: rollout.outcome is Outcome.COMPLETED)
            rows = [_row(rollout) for rollout in first[: self._table_rows]]
            self._live.log({"step": step, "rollouts": wandb.Table(columns=list(COLUMNS), data=rows)})

    def summary(self, values: Mapping[str, float]) -> None:
        self._live.summary.update(dict(values))

    def rewind(self, step: int) -> None:
        """Nothing: rows already written stay, and new ones of the same step follow at the same x."""


def _row(rollout: Rollout) -> list[Any]:
    return [
        rollout.task_id,
        rollout.harness,
        rollout.reward,
        str(rollout.outcome),
        len(rollout.calls),
        sum(len(call.sampled_ids) for call in rollout.calls),
        round(sum(rollout.times.values()), 3),
        rollout.reason[-REASON_LETTERS:],
    ]


def _settings() -> wandb.Settings:
    """No word on the terminal, no copy of it, and no look at git: a remote's URL may hold a credential."""
    return wandb.Settings(silent=True, console="off", disable_git=True, x_transaction_log_flush_interval=FLUSH_S)


def _run_id(folder: Path, resume: bool) -> str:
    """The W&B run that this run is, kept in its folder."""
    path = folder / "run_id"
    if not (resume and path.exists()):
        path.write_text(secrets.token_hex(4))
    return path.read_text()


@contextmanager
def _files_in(folder: Path) -> Iterator[None]:
    """Keep W&B's staged tables and logs in the run's folder; only the environment tells it where."""
    places = {"WANDB_DATA_DIR": str(folder / "data"), "WANDB_CACHE_DIR": str(folder / "cache")}
    before = {name: os.environ.get(name) for name in places}
    os.environ.update(places)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
