"""Metrics as lines of JSON in the run's folder, for `jq`, pandas and whoever comes after a kill.

Rollouts are not repeated here: the journal holds them.
"""

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clawexp.component import component
from clawexp.records import Rollout


@component
class Jsonl:
    """Writes metrics as the run goes, and `summary.json` at its end."""

    file: str
    """Name in the run's folder."""

    @asynccontextmanager
    async def open(self, run: Path, config: Mapping[str, Any], resume: bool) -> AsyncIterator["JsonlSink"]:
        path = run / self.file
        if resume and path.exists():
            _rewrite(path, _whole_lines(path))
        else:
            path.write_text("")
        yield JsonlSink(path)


class JsonlSink:
    """`{"step": 3, "reward/mean": 0.5, "learner/loss": null}`: a line per `log`, null for no number."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, **finite(metrics)}) + "\n")

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Nothing: they are in the journal."""

    def summary(self, values: Mapping[str, float]) -> None:
        self._path.with_name("summary.json").write_text(json.dumps(finite(values), indent=2) + "\n")

    def rewind(self, step: int) -> None:
        _rewrite(self._path, [line for line in _whole_lines(self._path) if line["step"] < step])


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Plain numbers, and None for those that JSON cannot hold."""
    return {name: _plain(value) for name, value in metrics.items()}


def _plain(value: float) -> float | None:
    if isinstance(value, int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """All lines but a last one that a kill cut short."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _rewrite(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Replace the file at once, so that a kill leaves the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    fresh.replace(path)
