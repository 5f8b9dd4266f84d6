"""Grades one output file against what it should hold, exactly and without trusting what a harness left.

It reads no file that is too large to be the answer, and nothing outside the sandbox's own listing of regular
files: a link or a pipe in place of the file counts as missing.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clawexp.records import Sandbox, Verdict

Shape = Literal["value", "lines", "csv", "json", "markdown"]

READ_BYTES = 65_536
"""A larger output file is not read."""
VALUE_WEIGHTS = {"exists": 0.1, "overlap": 0.2, "exact": 0.7}
MANY_WEIGHTS = {"exists": 0.1, "format": 0.1, "overlap": 0.3, "exact": 0.5}

_FIELD = re.compile(r"[^\s,|=:{}\[\]\"]+")
_RULE = re.compile(r":?-+:?")


class Unreadable(Exception):
    """The output file cannot be judged; the message says why."""


@dataclass(frozen=True, kw_only=True)
class FileGrader:
    """`FileGrader(path="o.txt", answer="80", shape="value", weights=VALUE_WEIGHTS, inputs={"a.conf": b""})`

    Checks, each in [0, 1]: `exists`; `format`, a plausible shape; `overlap`, the share of right fields,
    counted from what doing nothing would give; `exact`, up to one trailing newline, or up to spacing where
    the shape is JSON or a markdown table; `inputs`, whether the other files are as they were. A changed input
    scores 0, whatever else holds.
    """

    path: str
    answer: str
    shape: Shape
    weights: Mapping[str, float]
    """By check; they add up to 1."""
    inputs: Mapping[str, bytes]
    """Files that must survive."""
    before: str | None = None
    """What `path` held at the start, where the task is to change it."""

    async def grade(self, sandbox: Sandbox) -> Verdict:
        sizes = await sandbox.files()
        changed = await self._changed(sandbox, sizes)
        intact = float(changed is None)
        checks = {"exists": 0.0, "format": 0.0, "overlap": 0.0, "exact": 0.0, "inputs": intact}
        try:
            text = await _read(sandbox, self.path, sizes)
        except Unreadable as fault:
            return Verdict(score=0.0, checks=checks, reason=str(fault))
        if text == self.before:
            return Verdict(score=0.0, checks=checks, reason=f"{self.path} is as it was")
        checks |= self._judge(text)
        if changed is not None:
            return Verdict(score=0.0, checks=checks, reason=f"input {changed} was changed")
        # Rounded, so that every check at 1 is a score of exactly 1.
        score = round(sum(weight * checks[check] for check, weight in self.weights.items()), 6)
        wrong = f"{self.path} holds {_short(text)}, not {_short(self.answer)}"
        return Verdict(score=score, checks=checks, reason="" if checks["exact"] else wrong)

    def accepts(self, text: str) -> bool:
        """Whether a file of this text is the answer."""
        form = canonical(self.shape, text)
        return form is not None and form == canonical(self.shape, self.answer)

    async def _changed(self, sandbox: Sandbox, sizes: Mapping[str, int]) -> str | None:
        """The first input that is not as it was, by name."""
        for path, content in self.inputs.items():
            if sizes.get(path) != len(content) or await sandbox.get(path) != content:
                return path
        return None

    def _judge(self, text: str) -> dict[str, float]:
        return {
            "exists": 1.0,
            "format": float(plausible(self.shape, text, self.answer)),
            "overlap": self._gain(text),
            "exact": float(self.accepts(text)),
        }

    def _gain(self, text: str) -> float:
        if self.accepts(text):
            return 1.0
        start = 0.0 if self.before is None else overlap(self.before, self.answer)
        if start >= 1.0:  # all fields were there from the start; to bring them into order is all or nothing
            return 0.0
        # Capped below 1: the right fields in the wrong order are not the answer.
        return min(max(0.0, (overlap(text, self.answer) - start) / (1 - start)), 0.99)


def canonical(shape: Shape, text: str) -> Any:
    """The content without what does not matter in its shape; None where it has not that shape at all."""
    text = text.removesuffix("\n")
    if shape == "json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None
    if shape == "markdown":
        return _table(text)
    return text


def plausible(shape: Shape, text: str, answer: str) -> bool:
    """Whether the text has the shape of the answer, right or wrong."""
    found, wanted = canonical(shape, text), canonical(shape, answer)
    if found is None:
        return False
    if shape == "json":
        return _outline(found) == _outline(wanted)
    if shape == "markdown":
        return [len(row) for row in found] == [len(row) for row in wanted]
    lines, wanted_lines = found.split("\n"), wanted.split("\n")
    if shape == "csv":
        return [line.count(",") for line in lines] == [line.count(",") for line in wanted_lines]
    return len(lines) == len(wanted_lines) and all(line.strip() for line in lines)


def overlap(text: str, answer: str) -> float:
    """Dice coefficient of the two multisets of fields: extra ones cost as missing ones do."""
    found, wanted = Counter(_FIELD.findall(text)), Counter(_FIELD.findall(answer))
    return 2 * (found & wanted).total() / max(1, found.total() + wanted.total())


def _table(text: str) -> list[list[str]] | None:
    lines = [line.strip() for line in text.split("\n")]
    if len(lines) < 2 or not all(len(line) > 1 and line[0] == line[-1] == "|" for line in lines):
        return None
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    rule = rows.pop(1)
    return rows if len(rule) == len(rows[0]) and all(_RULE.fullmatch(cell) for cell in rule) else None


def _outline(found: Any) -> Any:
    """A list of objects by their keys; None for any other JSON."""
    if isinstance(found, list) and all(isinstance(row, dict) for row in found):
        return [sorted(row) for row in found]
    return None


async def _read(sandbox: Sandbox, path: str, sizes: Mapping[str, int]) -> str:
    """The text of a file. Raises Unreadable."""
    if path not in sizes:
        raise Unreadable(f"{path} does not exist, or is no regular file")
    if sizes[path] > READ_BYTES:
        raise Unreadable(f"{path} has {sizes[path]} bytes, more than the {READ_BYTES} that are read")
    data = await sandbox.get(path)
    if b"\0" in data:
        raise Unreadable(f"{path} is binary")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is not UTF-8 text: {error}") from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
