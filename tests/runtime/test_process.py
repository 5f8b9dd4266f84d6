import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.records import Command, Finished
from clawexp.runtime.process import start, supervise

Processes = Callable[[str], list[int]]
ENV = {"PATH": "/usr/bin:/bin"}


async def run(*argv: str, **options) -> Finished:
    command = Command(argv=argv, env=ENV, **options)
    return await supervise(argv, command, cwd=None)


async def test_both_streams_and_the_status_are_kept():
    done = await run("sh", "-c", "echo out; echo err >&2; exit 5")
    assert (done.code, done.stdout, done.stderr, done.timed_out) == (5, b"out\n", b"err\n", False)


async def test_a_signal_is_a_negative_status():
    assert (await run("sh", "-c", "kill -INT $$")).code == -signal.SIGINT


async def test_each_stream_keeps_its_last_bytes():
    done = await run("sh", "-c", "seq 100000; seq 9 >&2", output_bytes=7)
    assert (done.stdout, done.stderr) == (b"100000\n", b"\n7\n8\n9\n")
    assert (await run("echo", "x", output_bytes=0)).stdout == b""


async def test_input_is_exact_and_ends():
    data = bytes(range(256)) * 10_000
    assert (await run("cat", stdin=data, output_bytes=len(data))).stdout == data
    assert (await run("cat")).stdout == b""


async def test_a_timeout_keeps_what_was_said_before():
    done = await run("sh", "-c", "echo begun; sleep 60", timeout_s=2.0)
    assert (done.code, done.stdout, done.timed_out) == (-signal.SIGKILL, b"begun\n", True)


async def test_a_pipe_that_a_daemon_holds_does_not_hold_us(tmp_path: Path):
    done = await run("sh", "-c", f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 50' & sleep 0.3; echo said")
    assert (done.code, done.stdout) == (0, b"said\n")
    assert done.wall_s < 30
    await run("kill", "-9", (tmp_path / "pid").read_text().strip())


async def test_cancelling_ends_the_group(processes: Processes):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await run("sh", "-c", "sleep 109876 & sleep 109876", timeout_s=60)
    assert processes("109876") == []


async def test_a_program_may_call_itself_anything(processes: Processes):
    """Half of a character; and what it leaves in its group is looked for among all processes."""
    name = "open('/proc/self/comm', 'wb').write(b'caf\\xc3')"
    done = await run(sys.executable, "-c", f"import os, time; {name}; os.fork() or time.sleep(120987)")
    assert done.code == 0
    assert processes("120987") == []


async def test_an_error_beside_a_program_ends_it(processes: Processes):
    command = Command(argv=("sleep", "198765"), env=ENV)
    with pytest.raises(ValueError, match="no"):
        async with start(command.argv, command, cwd=None):
            raise ValueError("no")
    assert processes("198765") == []


async def test_many_run_at_once_and_leave_no_descriptor():
    before = len(list(Path("/proc/self/fd").iterdir()))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run("sh", "-c", f"echo {number}")) for number in range(32)]
    assert [task.result().stdout for task in tasks] == [b"%d\n" % number for number in range(32)]
    await asyncio.sleep(0)  # transports close one turn of the loop later
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


async def test_a_program_that_is_not_there_raises():
    with pytest.raises(FileNotFoundError):
        await run("/no/such/program")


async def test_a_finished_program_leaves_no_zombie():
    await run(sys.executable, "-c", "")
    stats = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    for child in " ".join(stats).split():
        assert "Z (zombie)" not in Path(f"/proc/{child}/status").read_text()
