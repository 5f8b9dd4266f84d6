import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Needs, Owner, Task
from clawexp.runtime.local import Local

Owners = Callable[..., Owner]
Processes = Callable[[str], list[int]]
SAFE = Local(file_bytes=1000, allow_unsafe=False)
TRUSTED = Needs(trusted=True)


async def test_a_command_runs_in_the_workspace_with_the_given_environment(task: Task, owner: Owners):
    async with SAFE.sandbox(task, TRUSTED, owner()) as sandbox:
        command = Command(argv=("sh", "-c", "cat data/a.txt; echo $WORD $HOME; exit 4"), env={"WORD": "yes"})
        done = await sandbox.run(command)
        assert (done.code, done.stdout) == (4, b"alphayes\n")
        assert (await sandbox.run(Command(argv=("pwd",)))).stdout.decode().strip() == sandbox.workspace
    assert list(owner().root.iterdir()) == []


async def test_it_says_that_it_is_no_isolation(task: Task, owner: Owners):
    async with SAFE.sandbox(task, TRUSTED, owner()) as sandbox:
        assert (sandbox.facts["isolation"], sandbox.facts["network"]) == ("none", "host")
        assert sandbox.facts["proxy_url"] == "http://127.0.0.1:8089"


async def test_a_foreign_harness_is_refused_and_the_option_named(task: Task, owner: Owners):
    with pytest.raises(RuntimeFault, match="allow_unsafe=true"):
        async with SAFE.sandbox(task, Needs(), owner()):
            pass
    assert not owner().root.exists()
    async with Local(file_bytes=1000, allow_unsafe=True).sandbox(task, Needs(), owner()) as sandbox:
        assert (await sandbox.run(Command(argv=("true",)))).code == 0


async def test_a_timeout_ends_the_group(task: Task, owner: Owners, processes: Processes):
    async with SAFE.sandbox(task, TRUSTED, owner()) as sandbox:
        command = Command(argv=("sh", "-c", "sleep 432109 & sleep 432109"), timeout_s=0.3)
        done = await sandbox.run(command)
        assert (done.timed_out, done.code) == (True, -signal.SIGKILL)
    assert processes("432109") == []


async def test_what_a_command_leaves_running_is_ended(task: Task, owner: Owners, processes: Processes):
    async with SAFE.sandbox(task, TRUSTED, owner()) as sandbox:
        done = await sandbox.run(Command(argv=("sh", "-c", "sleep 321098 & echo started")))
        assert (done.code, done.stdout) == (0, b"started\n")
        assert done.wall_s < 30
    assert processes("321098") == []


async def test_a_missing_program_is_told_by_its_status(task: Task, owner: Owners):
    async with SAFE.sandbox(task, TRUSTED, owner()) as sandbox:
        done = await sandbox.run(Command(argv=("no-such-program",)))
        assert (done.code, done.stderr) == (127, b"no-such-program: No such file or directory\n")


DRIVER = """
import asyncio, sys
from pathlib import Path
from clawexp.records import Command, Needs, Owner, Task
from clawexp.runtime.local import Local

async def main():
    task = Task(id="t", instruction="", files={}, grader=None, split="train")
    owner = Owner(run_id="run", rollout_id="r", root=Path(sys.argv[1]), proxy_socket=None, proxy_port=1)
    async with Local(file_bytes=1, allow_unsafe=False).sandbox(task, Needs(trusted=True), owner) as sandbox:
        await sandbox.run(Command(argv=("sleep", "210987"), timeout_s=99))

asyncio.run(main())
"""


def test_a_killed_driver_takes_its_command_with_it(tmp_path: Path, processes: Processes):
    (tmp_path / "driver.py").write_text(DRIVER)
    deadline = time.monotonic() + 30
    with subprocess.Popen([sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "boxes")]) as driver:
        while not processes("210987"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
    while processes("210987"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_a_task_that_names_paths_of_its_own_is_refused_and_told_where_it_can_run(task: Task, owner: Owners):
    for change in ({"workspace": "/app"}, {"folders": ("/tests",)}):
        with pytest.raises(RuntimeFault, match=r"task t needs /.*runtime=bubblewrap"):
            async with SAFE.sandbox(dataclasses.replace(task, **change), TRUSTED, owner()):
                pass
