import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from clawexp.records import Command
from clawexp.runtime.gate import Gate
from clawexp.runtime.process import Running, supervise

Processes = Callable[[str], list[int]]
BWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")


async def test_a_command_begins_only_at_the_gates_word_and_ends_with_all_it_started(
    tmp_path: Path, processes: Processes
):
    async def admit(running: Running) -> None:
        await asyncio.sleep(0.3)
        assert not (tmp_path / "begun").exists()
        await gate.open(running)

    script = f"touch {tmp_path}/begun; setsid sleep 135.79 >/dev/null 2>&1 & exit 3"
    with Gate() as gate:
        argv = (*BWRAP, "--bind", str(tmp_path), str(tmp_path), *gate.arguments, "sh", "-c", script)
        command = Command(argv=argv, env={"PATH": "/usr/bin:/bin"})
        done = await supervise(argv, command, cwd="/", pass_fds=gate.inherited, admit=admit)
        await gate.emptied()
        assert gate.read()["exit-code"] == 3
    assert done.code == 3
    assert processes("135.79") == []


async def test_a_sandbox_that_could_not_be_made_reports_no_status():
    with Gate() as gate:
        command = Command(argv=("bwrap", *gate.arguments, "--ro-bind", "/no/such", "/", "true"))
        done = await supervise(command.argv, command, cwd="/", pass_fds=gate.inherited, admit=gate.open)
        await gate.emptied()
        assert "exit-code" not in gate.read()
    assert done.code == 1


async def test_a_report_in_parts_is_read_whole(processes: Processes):
    # What bwrap does between two writes is its own affair: a program that waits there instead.
    script = """
import os, subprocess, sys, time
status, child = int(sys.argv[1]), subprocess.Popen(["sleep", "357.9"])
for part in ('{ "child-pid": %d' % child.pid, ', "net-namespace": 7', ' }\\n'):
    os.write(status, part.encode())
    time.sleep(0.1)
"""
    with Gate() as gate:
        command = Command(argv=(sys.executable, "-c", script, gate.arguments[1]))
        done = await supervise(command.argv, command, cwd="/", pass_fds=gate.inherited, admit=gate.open)
        await gate.emptied()
    assert done.code == 0, done.stderr
    assert processes("357.9") == []


async def test_a_timeout_at_the_gate_leaves_nothing(processes: Processes):
    with Gate() as gate:

        async def never(running: Running) -> None:
            await running.ended()

        argv = (*BWRAP, *gate.arguments, "sleep", "246.8")
        command = Command(argv=argv, timeout_s=0.3)
        done = await supervise(argv, command, cwd="/", pass_fds=gate.inherited, admit=never)
    assert (done.timed_out, done.code) == (True, -signal.SIGKILL)
    assert processes("246.8") == []
