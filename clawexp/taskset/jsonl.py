"""A file with a task on each line -> tasks; clawexp's own simple format.

    {"id": "total", "instruction": "Write the sum of a.txt to b.txt.", "files": {"a.txt": "1 2"},
     "check": {"file": "b.txt", "equals": "3"},
     "solution": [["read", {"path": "a.txt"}], ["write", {"path": "b.txt", "content": "3"}]], "split": "train"}

`files`, `solution`, `split` and `tags` may be left out. A file that is no text is {"base64": "..."}. A check compares
one file, by `shape` (`value`, `lines`, `csv`, `json`, `markdown`) with credit for a part, or is {"script": "..."}: a
shell script whose last line is the score.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from clawexp.component import component
from clawexp.records import Grader, Split, Task
from clawexp.spec import Share
from clawexp.taskset.grader import MANY_WEIGHTS, VALUE_WEIGHTS, FileGrader, Shape
from clawexp.taskset.listing import Entry, ListedTaskset, Problem
from clawexp.taskset.script_grader import ScriptGrader


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] in ("/", "~") or ".." in parts or "\0" in path:
        raise ValueError("must be a path inside the workspace, such as data/a.txt")
    return path


Inside = Annotated[str, AfterValidator(_inside)]


class Strict(BaseModel):
    """Unknown keys are refused: a misspelt one would be left out in silence."""

    model_config = ConfigDict(extra="forbid")


class Binary(Strict):
    base64: Base64Bytes


class FileCheck(Strict):
    file: Inside
    equals: str
    shape: Shape = "value"


class ScriptCheck(Strict):
    script: str = Field(min_length=1)


class Line(Strict):
    """One task as it is written."""

    id: str
    instruction: str = Field(min_length=1)
    check: FileCheck | ScriptCheck
    files: dict[Inside, str | Binary] = {}
    solution: list[tuple[str, dict[str, Any]]] = []
    split: Split | None = None
    tags: list[str] = []


@component
class Jsonl(ListedTaskset):
    """One JSON object a line."""

    path: str
    """The file; or `package:NAME` for one that ships with clawexp."""
    eval_share: Share
    """Share of the tasks that is held out, of those that do not say it themselves."""

    def entries(self, source: Path) -> Sequence[Entry | Problem]:
        lines = source.read_bytes().splitlines()
        numbered = [(f"{source}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
        return [each for where, line in numbered for each in _read(where, line)]


def _read(where: str, line: bytes) -> list[Entry | Problem]:
    try:
        found = Line.model_validate(json.loads(line))
    except ValidationError as error:
        return [Problem(where, f"{_place(detail['loc'])}{detail['msg']}") for detail in error.errors()]
    except ValueError as error:
        return [Problem(where, f"is no JSON: {error}")]
    return [Entry(id=found.id, where=where, split=found.split, make=_Written(found).task)]


def _place(location: Sequence[int | str]) -> str:
    """Where in the object; the names that pydantic gives to alternatives are none of the writer's words."""
    words = [str(part) for part in location if not str(part).startswith(("FileCheck", "ScriptCheck", "Binary", "str"))]
    return f"{'.'.join(words)}: " if words else ""


@dataclass(frozen=True)
class _Written:
    """A sound line."""

    line: Line

    def task(self, split: Split) -> Task:
        line = self.line
        files = {path: _content(value) for path, value in line.files.items()}
        return Task(
            id=line.id,
            instruction=line.instruction,
            files=files,
            grader=_grader(line.check, files),
            split=split,
            tags=("jsonl", *line.tags),
            oracle=tuple(line.solution),
        )


def _content(value: str | Binary) -> bytes:
    return value.encode() if isinstance(value, str) else value.base64


def _grader(check: FileCheck | ScriptCheck, files: Mapping[str, bytes]) -> Grader:
    if isinstance(check, ScriptCheck):
        return ScriptGrader(argv=("sh", "-c", check.script), files={}, clear=(), cwd=None)
    before = files.get(check.file)
    return FileGrader(
        path=check.file,
        answer=check.equals,
        shape=check.shape,
        weights=VALUE_WEIGHTS if check.shape == "value" else MANY_WEIGHTS,
        inputs={path: content for path, content in files.items() if path != check.file},
        before=before.decode(errors="replace") if before is not None else None,
    )
