import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boxes import Boxed

from clawexp.errors import TasksetError
from clawexp.records import Sandbox, Task, Verdict
from clawexp.taskset.clawgym import ClawGym

MOUNT = "/root/.openclaw/workspace"
REWARD = f"""#!/usr/bin/env bash
set -euo pipefail
python3 {MOUNT}/reward/check.py {MOUNT} | python3 -c \
'import json, sys; data = json.load(sys.stdin); print(sum(map(float, data.values())) / len(data))'
"""
CHECK = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[1], "out.txt")
print(json.dumps({"exists": out.exists(), "right": out.exists() and out.read_text() == "4"}))
"""


def write(folder: Path, check: str = CHECK, **changes: Any) -> Path:
    """A task in the format; a change to None leaves a key out."""
    data = {"task_id": folder.name, "user_query": "Write 4 to out.txt.", "input_mount_dir": MOUNT} | changes
    for name, text in {
        "data_entry.json": json.dumps({key: value for key, value in data.items() if value is not None}),
        "input_files/data/in.txt": "2 2",
        "reward/reward.sh": REWARD,
        "reward/check.py": check,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def only(folder: Path) -> Task:
    return ClawGym(path=str(folder), eval_share=0).train(0, 1, 0)[0]


async def graded(task: Task, sandbox: Sandbox, **left: str) -> Verdict:
    await sandbox.put({name.replace("_", "."): text.encode() for name, text in left.items()})
    return await task.grader.grade(sandbox)


def test_a_folder_becomes_a_task_without_its_grader(tmp_path: Path) -> None:
    write(tmp_path / "one", metadata={"category": "text", "grading_type": "automated"})
    task = only(tmp_path)
    assert (task.id, task.instruction) == ("one", "Write 4 to out.txt.")
    assert task.files == {"data/in.txt": b"2 2"}
    assert (task.workspace, task.tags) == (MOUNT, ("clawgym", "text", "automated"))


@pytest.mark.parametrize(("left", "score"), [({}, 0.0), ({"out_txt": "5"}, 0.5), ({"out_txt": "4"}, 1.0)])
async def test_its_own_script_grades_it_in_its_sandbox(
    tmp_path: Path, boxed: Boxed, left: dict[str, str], score: float
) -> None:
    write(tmp_path / "tasks/one")
    task = only(tmp_path / "tasks")
    async with boxed(task) as sandbox:
        assert sandbox.workspace == MOUNT
        verdict = await graded(task, sandbox, **left)
    assert verdict.score == score
    assert verdict.checks == {"exists": float(score > 0), "right": float(score == 1)}


async def test_a_script_that_crashes_is_no_verdict(tmp_path: Path, boxed: Boxed) -> None:
    write(tmp_path / "tasks/one", check="import nothing_that_exists")
    task = only(tmp_path / "tasks")
    async with boxed(task) as sandbox:
        with pytest.raises(TasksetError, match=r"(?s)reward\.sh.*nothing_that_exists|JSONDecodeError"):
            await graded(task, sandbox)


def test_every_bad_folder_is_listed_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    (write(tmp_path / "broken") / "data_entry.json").write_text('{\n"task_id": 3,\n}')
    write(tmp_path / "nameless", task_id=None, input_mount_dir="work")
    (write(tmp_path / "ungraded") / "reward/reward.sh").unlink()
    write(tmp_path / "twice", task_id="good")
    (write(tmp_path / "linked") / "input_files/link").symlink_to("/etc/hostname")
    (write(tmp_path / "reward") / "input_files/reward").mkdir()
    with pytest.raises(ValueError, match="8 of its tasks cannot be used") as error:
        ClawGym(path=str(tmp_path), eval_share=0.5)
    for said in (
        "empty: has no data_entry.json",
        "broken/data_entry.json: is no JSON: Expecting property name enclosed in double quotes: line 3",
        "nameless/data_entry.json: task_id: Field required",
        "nameless/data_entry.json: input_mount_dir: String should match",
        "ungraded: has no reward/reward.sh",
        "twice: the id 'good' is taken by",
        "linked: input_files/link is no regular file",
        "reward: input_files/reward stands where the grader's files go",
    ):
        assert said in str(error.value), said


async def test_the_tasks_that_ship_are_graded(boxed: Boxed) -> None:
    taskset = ClawGym(path="package:clawgym", eval_share=0.5)
    tasks = {task.id: task for task in (*taskset.train(0, 1, 0), *taskset.evaluation(1))}
    final = "Final report\nThe roof is done.\nThe door is not.\n"
    for name, path, text in (("total_hours", "total.txt", "12"), ("rename_report", "notes/final.txt", final)):
        async with boxed(tasks[name]) as sandbox:
            assert (await graded(tasks[name], sandbox)).score == 0
            await sandbox.put({path: text.encode()})
            assert (await graded(tasks[name], sandbox)).score == 1


async def test_recorded_tasks_are_graded_by_their_own_scripts(cases: Path, boxed: Boxed) -> None:
    taskset = ClawGym(path=str(cases / "clawgym"), eval_share=0)
    assert len(taskset.places()) == 4
    for task in taskset.train(0, 4, 0):
        async with boxed(task) as sandbox:
            nothing = await graded(task, sandbox)
            assert nothing.score < 0.5
            await sandbox.put(dict.fromkeys(named_outputs(task), b"{}"))
            something = await graded(task, sandbox)
        assert len(something.checks) > 5
        assert something.checks != nothing.checks, f"{task.id}: the script does not look at what was made"


def named_outputs(task: Task) -> list[str]:
    """Files that an instruction asks for."""
    words = task.instruction.replace("—", " ").split()
    found = {word.strip(".,:;()") for word in words if word.startswith(("build/", "output/", "outputs/"))}
    return sorted(name for name in found if "." in name)


@pytest.mark.harness
def test_recorded_tasks_run_through_openclaw_and_are_all_graded(
    cases: Path, whole_run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    chosen = ("taskset=clawgym", f"taskset.path={cases / 'clawgym'}", "harness=openclaw", "model=scripted", "steps=1")
    # They come without solutions, so the script is the same for all of them.
    calls = "model.engine.calls=[[ls,{path: input}],[write,{path: output/seo_audit.md,content: none}]]"
    every = ("taskset.eval_share=0", "num_tasks=4", "group_size=1", "eval.num_tasks=0", "logger=[jsonl]")
    done = whole_run(*chosen, calls, *every)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/*/*")
    values = json.loads((folder / "metrics.jsonl").read_text())
    assert (values["rollout/count"], values["outcome/completed"]) == (4, 4)
    assert (folder / "rollouts.log").read_text().count('"verdict":{"score"') == 4
