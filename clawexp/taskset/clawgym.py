"""ClawGym's folders -> tasks.

    FOLDER/task_0001/data_entry.json   task_id, user_query, input_mount_dir, metadata
                     input_files/      laid in the workspace, which lies at input_mount_dir in the sandbox
                     reward/reward.sh  prints the score, a number in [0, 1]; beside it what it needs, such as check.py

A task that is also scored by a rubric is scored by its script alone: a missing side does not count.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from clawexp.component import component
from clawexp.records import Split, Task
from clawexp.spec import Share
from clawexp.taskset.listing import Entry, ListedTaskset, Problem, task_folders
from clawexp.taskset.script_grader import ScriptGrader
from clawexp.taskset.tree_files import Unlayable, read_tree, tree_files


class DataEntry(BaseModel):
    """`data_entry.json`, as far as it is used."""

    task_id: str
    user_query: str = Field(min_length=1)
    input_mount_dir: str = Field(pattern=r"^(/[^/]+)+$")
    metadata: dict[str, Any] = {}
    split: Split | None = None


@component
class ClawGym(ListedTaskset):
    """Each task is graded by its own script, inside its sandbox."""

    path: str
    """The folder that holds the tasks' folders; or `package:NAME` for one that ships with clawexp."""
    eval_share: Share
    """Share of the tasks that is held out, of those that do not say it themselves."""

    def entries(self, source: Path) -> Sequence[Entry | Problem]:
        return [each for folder in task_folders(source) for each in _read(folder)]


def _read(folder: Path) -> Iterator[Entry | Problem]:
    problems = [*_missing(folder)]
    try:
        data = DataEntry.model_validate(json.loads((folder / "data_entry.json").read_text()))
    except FileNotFoundError:
        yield Problem(str(folder), "has no data_entry.json; a task of ClawGym has one")
        return
    except ValidationError as error:
        problems += [_invalid(folder, detail["loc"], detail["msg"]) for detail in error.errors()]
    except ValueError as error:
        problems.append(Problem(str(folder / "data_entry.json"), f"is no JSON: {error}"))
    else:
        if not problems:
            read = _Folder(folder, data)
            yield Entry(
                id=data.task_id, where=str(folder), split=data.split, make=read.task, workspace=data.input_mount_dir
            )
    yield from problems


def _invalid(folder: Path, place: Sequence[int | str], what: str) -> Problem:
    return Problem(str(folder / "data_entry.json"), f"{'.'.join(map(str, place))}: {what}")


def _missing(folder: Path) -> Iterator[Problem]:
    """What the format wants beside `data_entry.json`."""
    if not (folder / "reward/reward.sh").is_file():
        yield Problem(str(folder), "has no reward/reward.sh; a task without a script of its own cannot be graded")
    if (folder / "input_files/reward").exists():
        yield Problem(str(folder), "input_files/reward stands where the grader's files go; rename it")
    for part in ("input_files", "reward"):
        try:
            tree_files(folder / part)
        except Unlayable as error:
            yield Problem(str(folder), str(error))


@dataclass(frozen=True)
class _Folder:
    """A task's folder, found to be sound."""

    path: Path
    data: DataEntry

    def task(self, split: Split) -> Task:
        data = self.data
        kinds = (data.metadata.get("category"), data.metadata.get("grading_type"))
        return Task(
            id=data.task_id,
            instruction=data.user_query,
            files=read_tree(self.path / "input_files"),
            grader=self._grader(),
            split=split,
            tags=("clawgym", *(str(kind) for kind in kinds if kind)),
            workspace=data.input_mount_dir,
        )

    def _grader(self) -> ScriptGrader:
        mount = self.data.input_mount_dir
        files = {f"reward/{path}": content for path, content in read_tree(self.path / "reward").items()}
        detail = ("python3", f"{mount}/reward/check.py", mount) if "reward/check.py" in files else ()
        return ScriptGrader(
            argv=("bash", f"{mount}/reward/reward.sh"),
            files=files,
            clear=(str(PurePosixPath(mount, "reward")),),
            cwd="/",
            detail=detail,
        )
