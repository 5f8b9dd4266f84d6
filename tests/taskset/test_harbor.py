from pathlib import Path

import pytest
from boxes import Boxed

from clawexp.records import Command
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.taskset.harbor import Harbor

TOML = '[metadata]\ncategory = "text"\n[verifier]\ntimeout_sec = 9.0\n'
DOCKERFILE = "FROM debian\nWORKDIR /app\nCOPY a.txt .\n"


def write(folder: Path, **files: str | None) -> Path:
    """A task in the format; None leaves a file out."""
    written: dict[str, str | None] = {
        "task.toml": TOML,
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/a.txt": "x",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt",
        "solution/solve.sh": "touch done",
    }
    written |= {key.replace("__", "/").replace("_", "."): text for key, text in files.items()}
    for name, text in written.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def test_a_directory_becomes_a_task(tmp_path: Path) -> None:
    write(tmp_path / "one")
    (task,) = Harbor(path=str(tmp_path), eval_share=0).train(0, 1, 0)
    assert (task.id, task.instruction, task.files) == ("one", "Do it.", {"a.txt": b"x"})
    assert (task.workspace, task.folders) == ("/app", ("/tests", "/logs/verifier"))
    assert task.image is not None
    assert (task.image.context, task.image.required) == (tmp_path / "one/environment", False)
    assert task.oracle == (("exec", {"command": "bash -c 'touch done'"}),)


def test_a_dockerfile_that_builds_needs_an_image_and_a_runtime_without_one_says_so(tmp_path: Path) -> None:
    write(tmp_path / "built", environment__Dockerfile=f"{DOCKERFILE}RUN make\n")
    taskset = Harbor(path=str(tmp_path), eval_share=0)
    (place,) = taskset.places()
    reason = Bubblewrap(file_bytes=1, memory_mb=4000, cpus=2.0, pids=1000, disk_mb=4000, require_limits=False).refuses(
        place
    )
    assert reason is not None
    assert "task built needs an image" in reason
    assert "leave the task out" in reason
    (task,) = taskset.train(0, 1, 0)
    assert task.files == {}, "the image brings them"


def test_a_solution_with_files_of_its_own_is_no_oracle(tmp_path: Path) -> None:
    write(tmp_path / "one", solution__helper_py="")
    assert Harbor(path=str(tmp_path), eval_share=0).train(0, 1, 0)[0].oracle == ()


def test_a_task_can_say_on_which_side_it_is(tmp_path: Path) -> None:
    write(tmp_path / "kept")
    write(tmp_path / "out", task_toml='[metadata]\nsplit = "eval"\n')
    taskset = Harbor(path=str(tmp_path), eval_share=0)
    assert [task.id for task in taskset.evaluation(9)] == ["out"]


def test_every_bad_directory_is_listed_with_file_and_line(tmp_path: Path) -> None:
    write(tmp_path / "bare", task_toml=None)
    write(tmp_path / "broken", task_toml="[metadata\n")
    write(tmp_path / "mute", instruction_md=None)
    write(tmp_path / "untested", tests__test_sh=None)
    write(tmp_path / "named", environment__Dockerfile=None, environment__docker_compose_yaml="")
    (tmp_path / "named/environment/docker-compose.yaml").touch()
    write(tmp_path / "late", task_toml="[verifier]\ntimeout_sec = -1\n")
    write(tmp_path / "apart", task_toml='[verifier]\nenvironment_mode = "separate"\n')
    write(tmp_path / "steps", task_toml='[[steps]]\nname = "a"\n')
    fetching = "#!/bin/bash\n# curl https://x.org\napt-get  -y install curl\ncurl http://localhost:80/\n"
    write(tmp_path / "online", tests__test_sh=fetching)
    with pytest.raises(ValueError, match="cannot be used, so none is") as error:
        Harbor(path=str(tmp_path), eval_share=0.5)
    text = str(error.value)
    for said in (
        "bare: has no task.toml",
        "broken/task.toml: is no TOML: Expected ']'",
        "mute: has no instruction.md",
        "untested: has no tests/test.sh",
        "named: has no environment/Dockerfile; write one",
        "named: environment/docker-compose.yaml wants several containers",
        "late/task.toml: verifier.timeout_sec: Input should be greater than 0",
        "apart/task.toml: verifier.environment: tests run in the task's own sandbox",
        "steps/task.toml: steps: a task here has one step",
        "online: tests/test.sh:3 fetches from the network, `apt-get  -y install curl`",
    ):
        assert said in text, said
    assert text.count("fetches from the network") == 1


async def test_the_tasks_that_ship_are_solved_by_their_solutions(boxed: Boxed) -> None:
    taskset = Harbor(path="package:harbor", eval_share=0.5)
    tasks = [*taskset.train(0, 1, 0), *taskset.evaluation(9)]
    assert [task.id for task in tasks] == ["count_lines", "make_note"]
    for task in tasks:
        async with boxed(task) as sandbox:
            assert (await task.grader.grade(sandbox)).score == 0
            ((_, arguments),) = task.oracle
            env = {"PATH": "/usr/bin:/bin"}
            done = await sandbox.run(Command(argv=("sh", "-c", arguments["command"]), env=env))
            assert done.code == 0, done.stderr
            assert (await task.grader.grade(sandbox)).score == 1
