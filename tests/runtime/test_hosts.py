"""Sandboxes on hosts: real host programs, all of them on this machine."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from clawexp.errors import RuntimeFault
from clawexp.protocols import Runtime
from clawexp.records import Command, Finished, Needs, Owner, Sandbox, Task
from clawexp.rollout import GRADED
from clawexp.run_folder import RunFolder
from clawexp.runtime import hosts as module
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.runtime.hosts import Hosts
from clawexp.scratch import scratch_root

BUBBLEWRAP = Bubblewrap(file_bytes=1_000_000, memory_mb=512, cpus=1.0, pids=64, disk_mb=64, require_limits=False)
LIMIT_S = 120
"""For anything that only a hang would reach."""
Owners = Callable[..., Owner]
Processes = Callable[[str], list[int]]


def chosen(**options: Any) -> Hosts:
    given = {
        "hosts": ("local/a", "local/b"),
        "sandboxes": 2,
        "placing": "spread",
        "ssh": ("ssh",),
        "python": None,
        "start_s": 120.0,
    }
    return Hosts(each=BUBBLEWRAP, **{**given, **options})


def shell(script: str, **options: Any) -> Command:
    return Command(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}, **options)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.05)


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with chosen().open([tmp_path], []) as opened:
        yield opened


@contextlib.asynccontextmanager
async def several(runtime: Runtime, task: Task, owner: Owners, number: int) -> AsyncIterator[list[Sandbox]]:
    async with contextlib.AsyncExitStack() as stack:
        places = [runtime.sandbox(task, Needs(), owner(f"r{each}")) for each in range(number)]
        yield [await stack.enter_async_context(place) for place in places]


async def test_a_sandbox_elsewhere_does_what_one_here_does(hosts: Runtime, task: Task, owner: Owners):
    heard: list[tuple[str, bytes]] = []
    async with hosts.sandbox(task, Needs(), owner()) as sandbox:
        assert (sandbox.id, sandbox.workspace, sandbox.home) == ("r1", "/work", "/home/agent")
        assert sandbox.facts["host"] in {"local/a", "local/b"}
        assert sandbox.facts["isolation"] == "namespaces"
        done = await sandbox.run(
            shell("cat; cat data/a.txt; echo bad >&2; exit 3", stdin=b"in "), lambda *told: heard.append(told)
        )
        assert (done.code, done.stdout, done.stderr, done.timed_out) == (3, b"in alpha", b"bad\n", False)
        said = {stream: b"".join(data for of, data in heard if of == stream) for stream, _ in heard}
        assert said == {"stdout": b"in alpha", "stderr": b"bad\n"}
        kept = await sandbox.snapshot()
        await sandbox.put({"new.txt": b"\x00new", "deep/er/x": b""})
        assert await sandbox.get("new.txt") == b"\x00new"
        assert await sandbox.files() == {"data/a.txt": 5, "new.txt": 4, "deep/er/x": 0}
        await sandbox.stop()
        await sandbox.reset(kept)
        assert await sandbox.files() == {"data/a.txt": 5}
        assert (await sandbox.run(shell("sleep 60", timeout_s=0.2))).timed_out
        await sandbox.reset()
        assert await sandbox.files() == {"data/a.txt": 5}


async def test_errors_are_what_they_would_be_here(hosts: Runtime, task: Task, owner: Owners):
    async with hosts.sandbox(task, Needs(), owner()) as sandbox:
        with pytest.raises(FileNotFoundError, match="nothing"):
            await sandbox.get("nothing")
        with pytest.raises(RuntimeFault, match=r"host local/[ab]: "):
            await sandbox.put({"/etc/passwd": b"x"})
        assert (await sandbox.run(shell("echo still there"))).stdout == b"still there\n"
    with pytest.raises(RuntimeFault, match=r"host local/[ab]: .*/no/such"):
        async with hosts.sandbox(task, Needs(mounts={"/no/such": "/no/such"}), owner()) as sandbox:
            await sandbox.run(shell("true"))


async def test_sandboxes_are_spread_and_one_too_many_waits(hosts: Runtime, task: Task, owner: Owners):
    async def one_more() -> str:
        async with hosts.sandbox(task, Needs(), owner("late")) as sandbox:
            return sandbox.facts["host"]

    async with several(hosts, task, owner, 4) as sandboxes:
        assert sorted(each.facts["host"] for each in sandboxes) == ["local/a", "local/a", "local/b", "local/b"]
        late = asyncio.ensure_future(one_more())
        await asyncio.wait({late}, timeout=0.2)
        assert not late.done()
    assert await late in {"local/a", "local/b"}


async def test_a_cancelled_command_ends_there_and_the_next_one_runs(
    hosts: Runtime, task: Task, owner: Owners, processes: Processes
):
    async with hosts.sandbox(task, Needs(), owner()) as sandbox:
        running = asyncio.ensure_future(sandbox.run(shell("sleep 76543")))
        await until(lambda: processes("76543"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert processes("76543") == []
        assert (await sandbox.run(shell("echo on"))).stdout == b"on\n"


async def test_the_proxy_is_reached_from_there(hosts: Runtime, task: Task, owner: Owners, tmp_path: Path):
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    script = (
        "import socket; s = socket.create_connection(('127.0.0.1', 8089)); s.sendall(b'hello\\n'); print(s.recv(9))"
    )
    server = await asyncio.start_unix_server(shout, str(tmp_path / "s"))
    async with server, hosts.sandbox(task, Needs(), owner(socket=tmp_path / "s")) as sandbox:
        done = await sandbox.run(Command(argv=(sandbox.python, "-c", script)))
        assert done.stdout == b"b'HELLO\\n'\n", done.stderr


async def test_a_dead_host_fails_what_it_held_is_drained_and_comes_back(
    hosts: Runtime, task: Task, owner: Owners, processes: Processes
):
    async def run(sandbox: Sandbox) -> Finished | RuntimeFault:
        try:
            return await sandbox.run(shell("sleep 65432 & wait" if sandbox.facts["host"] == "local/a" else "echo well"))
        except RuntimeFault as fault:
            return fault

    def places() -> list[Path]:
        return sorted(scratch_root().glob("host-*/boxes"))

    async with several(hosts, task, owner, 2) as sandboxes:
        (doomed,) = [each for each in sandboxes if each.facts["host"] == "local/a"]
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(run(each)) for each in sandboxes]
            await until(lambda: processes("65432"))
            (program,) = {int(path.parent.name.split("-")[1]) for path in places() if (path / doomed.id).exists()}
            os.kill(program, signal.SIGKILL)
        found = {each.facts["host"]: task.result() for each, task in zip(sandboxes, runs, strict=True)}
    assert isinstance(found["local/b"], Finished)
    assert "host local/a is not reached any more" in str(found["local/a"])
    await until(lambda: not processes("65432"))

    async def host_of_one(number: int) -> str:
        async with several(hosts, task, owner, 4) as four:
            return sorted(each.facts["host"] for each in four)[0]

    assert await host_of_one(0) == "local/a"


async def test_a_host_that_makes_no_sandbox_is_drained_until_it_was_started_again(
    task: Task, owner: Owners, tmp_path: Path
):
    async with chosen(hosts=("local/a*9",)).open([tmp_path], []) as opened:
        bad = Needs(mounts={"/etc": "/work/etc"})
        for number in range(module.FAULTS):
            with pytest.raises(RuntimeFault, match="cannot be shown in a sandbox"):
                async with opened.sandbox(task, bad, owner(f"bad{number}")):
                    pass
        with pytest.raises(RuntimeFault, match=r"local/a: 3 sandboxes failed, one after another"):
            async with opened.sandbox(task, Needs(), owner("next")):
                pass

        async def works() -> bool:
            try:
                async with opened.sandbox(task, Needs(), owner("again")):
                    return True
            except RuntimeFault:
                return False

        async with asyncio.timeout(LIMIT_S):
            while not await works():  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.1)


def test_a_whole_run_is_spread_over_hosts_which_hold_no_more_than_they_can(
    whole_run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    places = ("runtime=hosts", "runtime.hosts=[local/a,local/b*2]", "runtime.sandboxes=1")
    done = whole_run(*places, "steps=1", "eval.num_tasks=0", "num_tasks=2", "group_size=4", "logger=[jsonl,console]")
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.rglob("rollouts.log")
    rollouts = RunFolder(path=log.parent).rollouts(0)
    assert len(rollouts) == 8
    assert {rollout.outcome for rollout in rollouts} <= GRADED, [rollout.reason for rollout in rollouts]
    assert {rollout.facts["host"] for rollout in rollouts} == {"local/a", "local/b"}
    assert "left of this run: 0 containers, 0 processes, 0 mounts, 0 cgroups, 0 sockets, 0 folders" in done.stderr


async def test_nothing_is_left_when_it_is_over(task: Task, owner: Owners, processes: Processes, tmp_path: Path):
    before = set(scratch_root().glob("host*"))
    async with chosen().open([tmp_path], []) as opened, opened.sandbox(task, Needs(), owner()) as sandbox:
        await sandbox.run(shell("echo x > x"))
    assert set(scratch_root().glob("host*")) == before
    assert processes("clawexp.runtime.host_program") == []


async def test_hosts_of_which_none_serves_are_refused_with_what_each_said(tmp_path: Path):
    ssh = ("sh", "-c", "echo ssh: no route >&2; exit 255")
    with pytest.raises(
        RuntimeFault, match=r"none of the hosts.*node1: host node1 does not serve sandboxes: ssh: no route"
    ):
        async with chosen(hosts=("node1", "node2"), ssh=ssh).open([tmp_path], []):
            pass


def test_a_host_may_have_its_own_number_of_sandboxes() -> None:
    assert chosen(hosts=("a", "me@b*64"), sandboxes=3).sandboxes_by_host == {"a": 3, "me@b": 64}


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ((), "at least one"),
        (("-oProxyCommand=x",), "a name that ssh knows"),
        (("a*0",), "a name that ssh knows"),
        (("a b",), "a name that ssh knows"),
        (("a", "b", "a*2"), "a is named twice"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(hosts: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        chosen(hosts=hosts)
