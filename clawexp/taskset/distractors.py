"""Plausible wrong solutions of a workbench task, for a warm start that leaves something to learn."""

import random
import re
from collections.abc import Mapping
from typing import Any

from clawexp.records import Task
from clawexp.taskset.grader import FileGrader
from clawexp.taskset.words import half

ToolCall = tuple[str, Mapping[str, Any]]

MAX_PER_CALL = 3
_TOKEN = re.compile(r"[A-Za-z0-9]+")


def distractors(task: Task) -> list[tuple[ToolCall, ...]]:
    """For every call of the oracle, whole solutions in which that call is wrong; each scores less than 1.

    The task must be the workbench's. A wrong read ends in a wrong answer. Depends on the task alone.
    """
    grader = task.grader
    assert isinstance(grader, FileGrader), f"{task.id} is no workbench task"
    rng = random.Random(task.id)
    *reads, (_, wanted) = task.oracle
    path, content = wanted["path"], wanted["content"]
    wrong = _wrong_contents(task, grader, rng)
    solutions: list[tuple[ToolCall, ...]] = []
    for position, (_, arguments) in enumerate(reads):
        for other in _wrong_paths(task, arguments["path"], rng):
            replaced = [*reads[:position], ("read", {"path": other}), *reads[position + 1 :]]
            solutions.append((*replaced, _write(path, rng.choice(wrong))))
    solutions += [(*reads, _write(other, content)) for other in _wrong_paths(task, path, rng)]
    return solutions + [(*reads, _write(path, text)) for text in wrong]


def _write(path: str, content: str) -> ToolCall:
    return ("write", {"path": path, "content": content})


def _wrong_paths(task: Task, path: str, rng: random.Random) -> list[str]:
    """Other files of the task, the same name with another ending, another name."""
    stem, _, ending = path.rpartition(".")
    others = [other for other in (*task.files, *_output(task)) if other != path]
    other_ending = "csv" if ending == "txt" else "txt"
    made = [f"{stem}.{other_ending}", f"{rng.choice(half('stem', task.split))}.{ending}"]
    chosen = [*rng.sample(others, min(1, len(others))), *made]
    return [other for other in dict.fromkeys(chosen) if other != path]


def _output(task: Task) -> list[str]:
    return [str(arguments["path"]) for name, arguments in task.oracle if name == "write"]


def _wrong_contents(task: Task, grader: FileGrader, rng: random.Random) -> list[str]:
    """Wrong answers, the likely ones first: another field, a cut answer, too much of the file."""
    answer, rows = grader.answer, grader.answer.split("\n")
    read = [arguments["path"] for name, arguments in task.oracle if name == "read"]
    source = task.files[read[-1]].decode() if read else task.instruction
    swapped = [_swap(answer, source, rng) for _ in range(MAX_PER_CALL)]
    cut = ["\n".join(rows[:-1]), "\n".join(rows[1:])] if len(rows) > 1 else [answer[:-1]]
    around = [line for line in source.split("\n") if answer in line]
    candidates = [*_neighbours(answer, source), *swapped, *cut, *around, source, answer[: len(answer) // 2]]
    return [text for text in dict.fromkeys(candidates) if text.strip() and not grader.accepts(text)]


def _neighbours(answer: str, source: str) -> list[str]:
    """The values of other lines, where the answer is one line's value."""
    ends = [found[-1] for line in source.split("\n") if (found := _TOKEN.findall(line))]
    return [end for end in ends if end != answer][:MAX_PER_CALL] if answer in ends else []


def _swap(answer: str, source: str, rng: random.Random) -> str:
    """The answer with one of its words or numbers replaced by another that stands in the source."""
    found = rng.choice(list(_TOKEN.finditer(answer)))
    others = sorted(set(_TOKEN.findall(source)) - {found.group()})
    return answer[: found.start()] + rng.choice(others) + answer[found.end() :]
