"""A line per step on stderr, and a table at the end; the same in a terminal and in a log file."""

import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

from clawexp.component import component
from clawexp.outcome import Outcome
from clawexp.records import Rollout

CURVE_STEPS = 8
REASON_LETTERS = 120
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
"""For a stream that cannot write the others."""


@component
class Console:
    """Which metrics are shown, and how; none is known to the code."""

    trend: str
    """Metric drawn as a small curve of the last steps."""
    columns: dict[str, str]
    """Metric by label, in order."""
    counts: str
    """Beginning of the metrics that are counts."""
    usual: tuple[str, ...]
    """Counts that need no mention."""
    table: tuple[str, ...]
    """Beginnings of the metrics that join the columns in the table at the end."""

    @asynccontextmanager
    async def open(self, run: Path, config: Mapping[str, Any], resume: bool) -> AsyncIterator["ConsoleSink"]:
        sink = ConsoleSink(self, int(config["steps"]), sys.stderr)
        try:
            yield sink
        finally:
            sink.close()


class ConsoleSink:
    """Writes as it is told; remembers what the table needs."""

    def __init__(self, options: Console, num_steps: int, stream: TextIO) -> None:
        self._options = options
        self._num_steps = num_steps
        self._stream = stream
        self._bars = BARS if (stream.encoding or "").lower().startswith("utf") else PLAIN_BARS
        self._history: dict[str, list[float]] = {}
        self._ends: list[tuple[int, float]] = []
        self._seen: set[tuple[Outcome, str]] = set()
        self._summary: dict[str, float] = {}
        self._reached = -1
        """The last step whose own figures were told."""
        self._started = time.monotonic()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line of the columns that the step reports; of all its metrics where it reports none of them."""
        for name, value in metrics.items():
            self._history.setdefault(name, []).append(float(value))
        shown = {label: name for label, name in self._options.columns.items() if name in metrics}
        head = f"step {step + 1:>{len(str(self._num_steps))}}/{self._num_steps}"
        if self._options.trend in metrics:
            self._reached = step
        else:  # an evaluation
            head = f"{'before' if step > self._reached else 'after'} {head}"
        if not shown:
            self._write("  ".join([head, *(f"{name} {number(value)}" for name, value in metrics.items())]))
            return
        cells = [f"{label} {number(metrics[name])}{self._curve(name)}" for label, name in shown.items()]
        self._write("  ".join([head, *cells, *self._counts(metrics), self._eta(step)]))

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """What went wrong, once per kind and reason."""
        for rollout in rollouts:
            reason = " ".join(rollout.reason.split())
            kind = (rollout.outcome, reason)
            if reason and rollout.outcome not in self._options.usual and kind not in self._seen:
                self._seen.add(kind)
                self._write(f"  {rollout.outcome} in {rollout.id}: {shorten(reason)}")

    def summary(self, values: Mapping[str, float]) -> None:
        """What was never logged, for the table; the rest is there already."""
        self._summary |= {name: value for name, value in values.items() if name not in self._history}

    def rewind(self, step: int) -> None:
        if step:
            self._write(f"resumed at step {step + 1}/{self._num_steps}")

    def close(self) -> None:
        """The table: the first, last, lowest and highest value of each metric, and the summary."""
        labels = {name: label for label, name in self._options.columns.items()}
        further = [name for name in self._history if name.startswith(self._options.table)]
        rows = [
            (labels.get(name, name), *map(number, (values[0], values[-1], min(values), max(values))))
            for name in dict.fromkeys([*labels, *further])
            if (values := self._history.get(name))
        ]
        if rows:
            self._write(table([("", "first", "last", "min", "max"), *rows]))
        if self._summary:
            self._write(table([(name, number(value)) for name, value in self._summary.items()]))

    def _counts(self, metrics: Mapping[str, float]) -> list[str]:
        counts = {
            name.removeprefix(self._options.counts): value
            for name, value in metrics.items()
            if name.startswith(self._options.counts)
        }
        return [
            f"{name} {number(value)}" for name, value in counts.items() if value and name not in self._options.usual
        ]

    def _curve(self, name: str) -> str:
        if name != self._options.trend:
            return ""
        return " " + curve(self._history[name][-CURVE_STEPS:], self._bars)

    def _eta(self, step: int) -> str:
        """From the pace of the last steps, which is the one that lasts."""
        now = time.monotonic()
        self._ends = [*self._ends, (step, now)][-CURVE_STEPS - 1 :]
        first, began = self._ends[0] if len(self._ends) > 1 else (step - 1, self._started)
        pace = (now - began) / max(1, step - first)
        return f"eta {duration(pace * max(0, self._num_steps - step - 1))}"

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def number(value: float) -> str:
    """Three digits that matter: `0.53`, `-0.0123`, `1.2e-05`, `128`."""
    return str(int(value)) if float(value).is_integer() else f"{value:.3g}"


def curve(values: Sequence[float], bars: str) -> str:
    """One bar per value, from the lowest to the highest of them; a dot for what is no number."""
    known = [value for value in values if value - value == 0]
    low, span = (min(known), max(known) - min(known)) if known else (0.0, 0.0)
    heights = len(bars) - 1
    return "".join(bars[round((value - low) / (span or 1) * heights)] if value in known else "." for value in values)


def duration(seconds: float) -> str:
    """`7s`, `3m07s`, `1h04m`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def shorten(text: str) -> str:
    """The end of a reason: that is where the cause stands."""
    return text if len(text) <= REASON_LETTERS else "..." + text[3 - REASON_LETTERS :]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *line[1:]]) for row, line in zip(rows, lines, strict=True))
