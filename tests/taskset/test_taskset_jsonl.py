import json
from pathlib import Path
from typing import Any

import pytest
from boxes import Boxed

from clawexp.records import Task
from clawexp.taskset.jsonl import Jsonl

GOOD = {"id": "sum", "instruction": "Add.", "files": {"a.txt": "1 2"}, "check": {"file": "b.txt", "equals": "3"}}


def tasks(folder: Path, *lines: dict[str, Any]) -> dict[str, Task]:
    file = folder / "tasks.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    taskset = Jsonl(path=str(file), eval_share=0)
    return {task.id: task for task in taskset.train(0, len(lines), 0)}


async def test_a_line_becomes_a_task_that_is_graded_with_credit_for_a_part(tmp_path: Path, boxed: Boxed) -> None:
    solution = [["write", {"path": "b.txt", "content": "3"}]]
    task = tasks(tmp_path, {**GOOD, "solution": solution, "tags": ["maths"]})["sum"]
    assert (task.files, task.tags) == ({"a.txt": b"1 2"}, ("jsonl", "maths"))
    assert task.oracle == (("write", {"path": "b.txt", "content": "3"}),)
    async with boxed(task) as sandbox:
        for text, score in (("4", 0.1), ("3\n", 1.0)):
            await sandbox.put({"b.txt": text.encode()})
            assert (await task.grader.grade(sandbox)).score == score
        await sandbox.put({"a.txt": b"changed"})
        assert (await task.grader.grade(sandbox)).score == 0


async def test_a_script_checks_what_no_comparison_can(tmp_path: Path, boxed: Boxed) -> None:
    script = "echo looking; [ -f b.bin ] && echo 0.5 || echo 0"
    files = {"raw.bin": {"base64": "AAH/"}}
    task = tasks(tmp_path, {**GOOD, "files": files, "check": {"script": script}})["sum"]
    assert task.files == {"raw.bin": b"\x00\x01\xff"}
    async with boxed(task) as sandbox:
        assert (await task.grader.grade(sandbox)).score == 0
        await sandbox.put({"b.bin": b""})
        assert (await task.grader.grade(sandbox)).score == 0.5


async def test_a_file_that_is_to_be_changed_scores_nothing_as_it_was(tmp_path: Path, boxed: Boxed) -> None:
    check = {"file": "a.txt", "equals": "1\n3", "shape": "lines"}
    task = tasks(tmp_path, {**GOOD, "files": {"a.txt": "1\n2"}, "check": check})["sum"]
    async with boxed(task) as sandbox:
        assert (await task.grader.grade(sandbox)).score == 0
        await sandbox.put({"a.txt": b"1\n3"})
        assert (await task.grader.grade(sandbox)).score == 1


def test_every_bad_line_is_listed_with_its_number(tmp_path: Path) -> None:
    bad = [
        json.dumps(GOOD),
        "{",
        json.dumps({key: value for key, value in GOOD.items() if key != "instruction"}),
        json.dumps(GOOD),
        json.dumps({**GOOD, "id": "path", "files": {"../a.txt": ""}}),
        json.dumps({**GOOD, "id": "key", "instrution": "x"}),
        json.dumps({**GOOD, "id": "check", "check": {"file": "b.txt"}}),
        json.dumps({**GOOD, "id": "side", "split": "test"}),
    ]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(bad))
    with pytest.raises(ValueError, match="cannot be used, so none is") as error:
        Jsonl(path=str(file), eval_share=0.5)
    for said in (
        f"{file}:2: is no JSON",
        f"{file}:3: instruction: Field required",
        f"{file}:4: the id 'sum' is taken by {file}:1",
        f"{file}:5: files.../a.txt",
        f"{file}:6: instrution: Extra inputs are not permitted",
        f"{file}:7: check.equals: Field required",
        f"{file}:8: split: Input should be 'train' or 'eval'",
    ):
        assert said in str(error.value), f"{said} is not in {error.value}"


async def test_the_tasks_that_ship_are_solved_by_their_solutions(boxed: Boxed) -> None:
    taskset = Jsonl(path="package:tasks.jsonl", eval_share=0.5)
    shipped = [*taskset.train(0, 2, 0), *taskset.evaluation(9)]
    assert {task.id for task in shipped} == {"sum", "upper", "swap", "shopping"}
    for task in shipped:
        async with boxed(task) as sandbox:
            await sandbox.put({a["path"]: a["content"].encode() for name, a in task.oracle if name == "write"})
            assert (await task.grader.grade(sandbox)).score == 1
