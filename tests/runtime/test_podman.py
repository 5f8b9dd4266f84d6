import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished, Image, Needs, Owner, Sandbox, Task
from clawexp.rollout import GRADED
from clawexp.run_folder import RunFolder
from clawexp.runtime import cgroup, image
from clawexp.runtime.cgroup import own_groups
from clawexp.runtime.podman import OpenPodman, Podman
from clawexp.runtime.reaper import discard, sweep, sweep_expired
from clawexp.runtime.task_image import wanted
from clawexp.scratch import scratch_root

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = Podman(
    file_bytes=100_000,
    memory_mb=100,
    cpus=1.0,
    pids=40,
    disk_mb=500,
    warm=0,
    creators=2,
    require_limits=False,
    oci_runtime="crun",
    base="package:base",
    build_network="none",
    build_s=600,
    builds=2,
)
DOCKERFILE = """\
FROM debian:bookworm-slim
ENV DOUBLE=42 PATH="/opt/tools:$PATH"
WORKDIR /app
COPY note.txt .
RUN mkdir /opt/tools && printf '#!/bin/sh\\necho $DOUBLE\\n' > /opt/tools/double && chmod +x /opt/tools/double
RUN echo 21 > number.txt && chmod 600 number.txt && mkdir deep && ln -s ../number.txt deep/link
RUN mkdir /data && chown 1000 /data
ENTRYPOINT ["false"]
"""
Owners = Callable[..., Owner]
Processes = Callable[[str], list[int]]
WholeRun = Callable[..., subprocess.CompletedProcess[str]]
Boxes = Callable[..., contextlib.AbstractAsyncContextManager[Sandbox]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[OpenPodman, Path]]:
    """A live podman, and the folder below which its sandboxes and sockets lie."""
    folder = tmp_path_factory.mktemp("podman")
    folder.chmod(0o711)
    OPTIONS.prepare()
    async with OPTIONS.open([folder], []) as podman:
        assert isinstance(podman, OpenPodman)
        yield podman, folder
        assert await podman.labels() == []


@pytest.fixture
def imaged(tmp_path: Path, task: Task) -> Iterator[Task]:
    """A task with an image of its own, which is removed afterwards."""
    context = tmp_path / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text(f"{DOCKERFILE}# {tmp_path}\n")
    (context / "note.txt").write_text("hello\n")
    mine = replace(task, files={"more.txt": b"put"}, workspace="/app", image=Image(context=context, required=True))
    (need,) = wanted([mine])
    yield mine
    discard(need.store(image.NAME))


@pytest.fixture
def box(place: tuple[OpenPodman, Path], task: Task) -> Boxes:
    """Makes sandboxes of one task."""
    podman, folder = place

    def make(rollout_id: str = "r1", needs: Needs | None = None, socket: Path | None = None, of: Task = task):
        owner = Owner(run_id="run", rollout_id=rollout_id, root=folder / "boxes", proxy_socket=socket, proxy_port=8089)
        return podman.sandbox(of, needs or Needs(), owner)

    return make


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The scratch root of the programs that a test starts; a short path, since sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="cx-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder, scratch_root().name)


def shell(script: str, **options) -> Command:
    return Command(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}, **options)


def python(script: str, **options) -> Command:
    return Command(argv=("/usr/bin/python3", "-I", "-c", script), **options)


async def ran(sandbox: Sandbox, script: str, **options) -> Finished:
    return await sandbox.run(shell(script, **options))


async def test_a_command_sees_the_task_as_an_ordinary_user(box: Boxes) -> None:
    async with box() as sandbox:
        done = await ran(sandbox, "pwd; id -u; whoami; cat data/a.txt; echo out > new.txt; env | sort")
        assert done.code == 0, done.stderr
        assert done.stdout.decode().split() == ["/work", "1000", "agent", "alphaPATH=/usr/bin:/bin", "PWD=/work"]
        assert await sandbox.get("new.txt") == b"out\n"
        assert await sandbox.files() == {"data/a.txt": 5, "new.txt": 4}


async def test_a_program_can_change_what_was_put_in_and_what_it_left_stays(box: Boxes) -> None:
    async with box() as sandbox:
        await sandbox.put({"deep/er/b.txt": b"one\n", "~/.config/c": b"two\n"})
        script = "echo more >> deep/er/b.txt; echo > deep/new; cat /home/agent/.config/c; echo three > /tmp/y"
        assert (await ran(sandbox, script)).stdout == b"two\n"
        assert await sandbox.get("deep/er/b.txt") == b"one\nmore\n"
        assert (await ran(sandbox, "cat /tmp/y")).stdout == b"three\n"


async def test_input_reaches_the_command_and_only_the_last_output_is_kept(box: Boxes) -> None:
    async with box() as sandbox:
        done = await sandbox.run(Command(argv=("cat",), stdin=b"x" * 3_000_000 + b"end", output_bytes=1000))
        assert (len(done.stdout), done.stdout[-4:]) == (1000, b"xend")
        assert (await ran(sandbox, "cat; echo bad > /dev/stderr")).stderr == b"bad\n"


async def test_exit_statuses_and_signals_are_told(box: Boxes) -> None:
    async with box() as sandbox:
        assert (await ran(sandbox, "exit 7")).code == 7
        assert (await ran(sandbox, "kill -TERM $$")).code == -signal.SIGTERM
        missing = await sandbox.run(Command(argv=("no-such-program",)))
        assert (missing.code, missing.stderr) == (127, b"no-such-program: No such file or directory\n")
        with pytest.raises(RuntimeFault, match="/nowhere"):
            await sandbox.run(Command(argv=("true",), cwd="/nowhere"))
        assert (await ran(sandbox, "true")).code == 0


async def test_output_is_heard_as_it_comes(box: Boxes) -> None:
    heard: list[tuple[str, bytes]] = []
    async with box() as sandbox:

        def hear(stream: str, data: bytes) -> None:
            heard.append((stream, data))
            sandbox.folder.put(f"go{len(heard)}", b"")  # pyright: ignore[reportAttributeAccessIssue]

        done = await sandbox.run(shell("echo a; until [ -e go1 ]; do sleep 0.02; done; echo b >&2"), hear)
        assert heard == [("stdout", b"a\n"), ("stderr", b"b\n")]
        assert (done.stdout, done.stderr) == (b"a\n", b"b\n")


BIRTH = "cut -d ' ' -f 22 /proc/1/stat"
"""Tells one life from another; the number of a namespace is given again."""


@pytest.mark.parametrize(
    ("left", "goes_on"),
    [
        ("setsid sleep 345678 >/dev/null 2>&1 &", True),
        ("echo x > /dev/shm/x", False),
        ("python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_FSIZE, (9, 9))'", False),
        ("renice -n 5 1", False),
    ],
)
async def test_a_life_goes_on_after_a_stop_only_where_it_is_as_it_began(box: Boxes, left: str, goes_on: bool) -> None:
    async with box() as sandbox:
        tell = f"{BIRTH}; ulimit -f; ps -o ni= 1; ls /dev/shm"
        birth, *conditions = (await ran(sandbox, f"{tell}; {left}")).stdout.split()[:3]
        await sandbox.stop()
        later_birth, *later = (await ran(sandbox, tell)).stdout.split()
        assert later == conditions
        assert (later_birth == birth) is goes_on


async def test_a_reset_brings_back_the_beginning_and_a_snapshot_what_it_holds(box: Boxes) -> None:
    havoc = "rm -rf data; echo x > ~/x; echo y > /tmp/y; mkdir -p d/e; chmod 0 d/e; ln -s / d/root; mkfifo pipe"
    async with box() as sandbox:
        await ran(sandbox, "echo one > one; chmod 600 one; ln -s one link")
        kept = await sandbox.snapshot()
        for to, listed in ((kept, {"data/a.txt": 5, "one": 4}), (None, {"data/a.txt": 5})):
            assert (await ran(sandbox, f"HOME=/home/agent; {havoc}")).code == 0
            await sandbox.reset(to)
            assert await sandbox.files() == listed
            assert (await ran(sandbox, "ls -A ~agent /tmp; echo 1 >> one; cat data/a.txt")).stdout.endswith(b"alpha")


async def test_a_long_command_line_and_environment_arrive_whole(box: Boxes) -> None:
    async with box() as sandbox:
        words = [f"{number:>09}" for number in range(9000)]
        command = Command(argv=("sh", "-c", 'echo "$# ${#WORD}"', "sh", *words), env={"WORD": "w" * 90_000})
        assert (await sandbox.run(command)).stdout == b"9000 90000\n"


async def test_there_is_no_network(box: Boxes) -> None:
    host = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = host.sockets[0].getsockname()[1]
    script = f"""
import socket
for address in (("127.0.0.1", {port}), ("1.1.1.1", 53), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, timeout=2)
        print("open", address)
    except OSError as error:
        print("closed")
print([name for _, name in socket.if_nameindex()])
"""
    async with host, box() as sandbox:
        done = await sandbox.run(python(script))
        assert done.stdout.decode().split("\n")[:4] == ["closed", "closed", "closed", "['lo']"], done


TALK = """
import socket
{connect}
c.sendall(b"hello\\n")
print(c.makefile().readline().strip())
"""
BY_TCP = 'c = socket.create_connection(("127.0.0.1", 8089))'
BY_SOCKET = 'c = socket.socket(socket.AF_UNIX); c.connect("/run/clawexp/proxy.sock")'


@pytest.mark.parametrize(("dials_socket", "connect"), [(False, BY_TCP), (True, BY_SOCKET)])
async def test_the_proxy_alone_can_be_reached(
    box: Boxes, place: tuple[OpenPodman, Path], dials_socket: bool, connect: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    path = place[1] / f"proxy-{dials_socket}"
    server = await asyncio.start_unix_server(answer, str(path))
    path.chmod(0o666)
    async with server, box(needs=Needs(dials_socket=dials_socket), socket=path) as sandbox:
        assert sandbox.facts["network"] == "proxy"
        assert sandbox.facts["proxy_socket"] == "/run/clawexp/proxy.sock"
        done = await sandbox.run(python(TALK.format(connect=connect)))
        assert done.stdout == b"HELLO\n", done.stderr
        assert (await ran(sandbox, "kill -KILL $$")).code == -signal.SIGKILL


async def test_the_host_cannot_be_seen_or_changed(box: Boxes) -> None:
    async with box("r1") as sandbox, box("r2") as other:
        await other.put({"secret.txt": b"other"})
        script = f"""
            ls {Path(__file__).parent} 2>/dev/null
            cat /etc/shadow 2>/dev/null
            touch /usr/x /etc/x /x /run/clawexp/x 2>/dev/null
            echo evil > /proc/sys/kernel/hostname 2>/dev/null
            mount -t tmpfs none /tmp 2>/dev/null && echo mounted
            grep -hE 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status
            find / -name secret.txt 2>/dev/null
        """
        done = await ran(sandbox, script)
        none = "0000000000000000"
        assert done.stdout.decode().split() == ["CapEff:", none, "CapBnd:", none, "NoNewPrivs:", "1", "Seccomp:", "2"]


async def test_its_ids_are_those_of_nobody_on_the_host(box: Boxes) -> None:
    async with box() as sandbox:
        lines = (await ran(sandbox, "cat /proc/self/uid_map")).stdout.decode().splitlines()
        outside = {int(line.split()[1]) for line in lines}
        assert 0 not in outside
        assert {number for number in outside if number < 100_000} <= {os.getuid()}


async def test_killing_everything_inside_harms_nothing_outside(box: Boxes) -> None:
    outside = await asyncio.create_subprocess_exec("sleep", "1000")
    async with box() as sandbox:
        await sandbox.run(python("import os, signal; os.kill(-1, signal.SIGKILL)"))
        await ran(sandbox, f"pkill -9 -f . ; kill -9 1 {outside.pid} {os.getpid()}")
        assert (await ran(sandbox, "echo alive")).stdout == b"alive\n"
    assert outside.returncode is None
    outside.kill()
    await outside.wait()


async def test_a_timeout_ends_the_whole_tree(box: Boxes, processes: Processes) -> None:
    async with box() as sandbox:
        script = "setsid sleep 987654 </dev/null >/dev/null 2>&1 & (trap '' TERM; sleep 987655) & sleep 987656"
        done = await ran(sandbox, script, timeout_s=0.5)
        assert (done.timed_out, done.code) == (True, -signal.SIGKILL)
        assert processes("98765") == []
        assert (await ran(sandbox, "ps ax | grep -c '[s]leep'")).stdout == b"0\n"


async def test_nothing_runs_on_after_a_command_has_ended(box: Boxes, processes: Processes) -> None:
    async with box() as sandbox:
        assert (await ran(sandbox, "setsid sleep 876543 >/dev/null 2>&1 & exit 0")).code == 0
        assert processes("876543") == []


async def test_cancelling_ends_the_command_and_removes_the_sandbox(
    box: Boxes, place: tuple[OpenPodman, Path], processes: Processes
) -> None:
    started = asyncio.Event()

    async def forever() -> None:
        async with box() as sandbox:
            started.set()
            await ran(sandbox, "sleep 654321", timeout_s=100)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(forever())
        await started.wait()
        await until(lambda: processes("654321") != [])
        task.cancel()
    assert processes("654321") == []
    assert await place[0].labels() == []
    assert list((place[1] / "boxes").iterdir()) == []


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
async def test_cancelling_while_a_sandbox_is_made_leaves_none(
    box: Boxes, place: tuple[OpenPodman, Path], after_s: float
) -> None:
    async def make() -> None:
        async with box() as sandbox:
            await ran(sandbox, "sleep 10")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await make()
    assert await place[0].labels() == []
    assert list((place[1] / "boxes").iterdir()) == []


async def test_limits_are_what_the_facts_say(box: Boxes) -> None:
    async with box() as sandbox:
        expected = {"memory": ("memory_mb", 100), "cpu": ("cpus", 1.0), "pids": ("pids", 40)}
        in_force = dict(expected[controller] for controller in own_groups())
        assert sandbox.facts["limits"] == {**in_force, "disk_mb": 500}
        lacking = {name for controller, (name, _) in expected.items() if controller not in own_groups()}
        assert set(sandbox.facts["limits_missing"]) == lacking
        if "memory" in own_groups():
            done = await sandbox.run(python("b = bytearray(300 << 20); print('got it')"))
            assert (done.code, done.stdout) == (-signal.SIGKILL, b"")
            assert b"out of memory: 1 of its processes were killed" in done.stderr
            assert (await ran(sandbox, "echo fine >&2")).stderr == b"fine\n"
        if "pids" in own_groups():
            script = """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except BlockingIOError:
    print(made)
"""
            assert 20 <= int((await sandbox.run(python(script))).stdout) <= 40


async def test_a_container_whose_time_is_over_is_removed_though_its_driver_lives(
    box: Boxes, place: tuple[OpenPodman, Path], processes: Processes
) -> None:
    podman, folder = place
    async with box("old") as sandbox, box("new") as other:
        await other.run(Command(argv=("true",)))
        label = json.loads((folder / "boxes/old/label.json").read_text())
        (folder / "boxes/old/label.json").write_text(json.dumps({**label, "expires": 1}))
        async with asyncio.TaskGroup() as group:
            at_work = group.create_task(_outcome(ran(sandbox, "sleep 456789", timeout_s=300)))
            await until(lambda: processes("456789") != [])
            assert await asyncio.to_thread(sweep_expired, folder) == 1
        assert "process 1 of the sandbox died" in at_work.result()
        assert [each["clawexp.rollout"] for each in await podman.labels()] == ["new"]
        assert [path.name for path in (folder / "boxes").iterdir()] == ["new"]
        assert (await ran(other, "echo alive")).stdout == b"alive\n"


async def _outcome(work: Awaitable[Finished]) -> str:
    try:
        return str(await work)
    except RuntimeFault as fault:
        return str(fault)


async def test_many_at_once(box: Boxes) -> None:
    async def one(number: int) -> bytes:
        async with box(f"many-{number}") as sandbox:
            return (await ran(sandbox, f"echo {number} > n; cat n")).stdout

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(8)]
    assert [task.result() for task in tasks] == [f"{number}\n".encode() for number in range(8)]


async def test_labels_say_whose_a_container_is(box: Boxes, place: tuple[OpenPodman, Path]) -> None:
    async with box("r7"):
        (labels,) = await place[0].labels()
        assert (labels["clawexp.run"], labels["clawexp.rollout"]) == ("run", "r7")
        pid, started = labels["clawexp.owner"].split(":")
        assert int(pid) == os.getpid()
        assert started == Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        assert int(labels["clawexp.expires"]) > time.time()


async def test_a_task_has_the_folders_that_its_programs_name(box: Boxes, task: Task) -> None:
    fixed = Task(
        id="t",
        instruction="",
        files={"a": b"1"},
        grader=task.grader,
        split="train",
        workspace="/app",
        folders=("/tests", "/logs/verifier"),
    )
    async with box(of=fixed) as sandbox:
        assert sandbox.workspace == "/app"
        await sandbox.put({"/tests/test.sh": b"cat /app/a > /logs/verifier/reward.txt; pwd"})
        assert (await ran(sandbox, "sh /tests/test.sh")).stdout == b"/app\n"
        assert await sandbox.get("/logs/verifier/reward.txt") == b"1"


async def test_what_the_image_cannot_give_is_refused_with_a_reason(task: Task) -> None:
    def reason(**changes) -> str | None:
        plain = {"id": "t", "instruction": "", "files": {}, "grader": task.grader, "split": "train"}
        return OPTIONS.refuses(Task(**{**plain, **changes}))

    assert reason() is None
    assert "/usr/x" in (reason(folders=("/usr/x",)) or "")
    assert reason(image=Image(context=Path("/x"), required=True)) is None
    assert reason(image=Image(context=Path("/x"), required=False)) is None


async def test_mounts_are_read_only_and_a_missing_one_is_a_fault(box: Boxes, place: tuple[OpenPodman, Path]) -> None:
    package = place[1] / "package"
    package.mkdir()
    (package / "main.js").write_text("1")
    async with box(needs=Needs(mounts={str(package): str(package)})) as sandbox:
        done = await ran(sandbox, f"cat {package}/main.js; echo 2 > {package}/main.js")
        assert done.stdout == b"1"
        assert done.code != 0
        await sandbox.reset()  # its /tmp, where the package is shown, is emptied
        assert (await ran(sandbox, f"cat {package}/main.js")).stdout == b"1"
        await sandbox.stop()
        assert (await ran(sandbox, f"cat {package}/main.js")).stdout == b"1"
    with pytest.raises(RuntimeFault, match="/no/such/folder"):
        async with box(needs=Needs(mounts={"/no/such/folder": "/no/such/folder"})) as sandbox:
            await ran(sandbox, "true")
    with pytest.raises(RuntimeFault, match="XDG_CACHE_HOME"):
        async with box(needs=Needs(mounts={"/work/cache": "/work/cache"})):
            pass


async def test_one_name_is_one_live_sandbox(box: Boxes) -> None:
    async with box():
        with pytest.raises(RuntimeFault, match="live sandbox"):
            async with box():
                pass


async def test_without_its_image_it_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeFault, match="prepare runtime=podman"):
        async with OPTIONS.open([tmp_path], []):
            pass


async def test_a_task_is_tried_in_its_own_image(place: tuple[OpenPodman, Path], imaged: Task, owner: Owners) -> None:
    await asyncio.to_thread(OPTIONS.images([imaged]).prepare)
    folders = [place[1]]
    mine = replace(owner(), root=place[1] / "boxes")
    async with OPTIONS.open(folders, [imaged]) as podman, podman.sandbox(imaged, Needs(), mine) as sandbox:
        assert sandbox.facts["image"].startswith("task-")
        assert sandbox.facts["base"] == image.NAME
        assert await sandbox.files() == {"more.txt": 3, "note.txt": 6, "number.txt": 3}
        done = await ran(sandbox, "pwd; id -u; double; echo $PATH; cat number.txt deep/link note.txt more.txt")
        path = "/opt/tools:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        assert done.stdout.decode().split() == ["/app", "1000", "42", path, "21", "21", "hello", "put"], done.stderr
        assert (await ran(sandbox, "echo 1 > /data/x && echo 2 > note.txt && cat /data/x")).stdout == b"1\n"
        assert (await ran(sandbox, "cat /data/x; touch /usr/x")).stdout == b"1\n", "it stays from command to command"
        assert await sandbox.get("note.txt") == b"2\n"
        with pytest.raises(RuntimeFault, match="not kept or reset"):
            await sandbox.snapshot()


async def test_a_rollout_gets_the_sandbox_of_an_earlier_one_and_nothing_of_what_that_left(
    place: tuple[OpenPodman, Path], task: Task, owner: Owners
) -> None:
    async with replace(OPTIONS, warm=2).open([place[1]], []) as podman:
        assert isinstance(podman, OpenPodman)

        async def tried(rollout_id: str, script: str) -> tuple[Sandbox, Finished]:
            mine = replace(owner(rollout_id), root=place[1] / "boxes")
            async with podman.sandbox(task, Needs(), mine) as sandbox:
                assert sandbox.id == rollout_id
                done = await ran(sandbox, f"HOME=/home/agent; ls -A . ~ /tmp /dev/shm; {script}")
            await until(lambda: podman._pool is not None and not podman._pool._tasks)
            return sandbox, done

        first, clean = await tried("r1", "echo x > ~/x; echo y > /tmp/y; echo z > z; setsid sleep 456789 &")
        second, done = await tried("r2", "echo x > /dev/shm/x")
        third, again = await tried("r3", "true")
        assert first is second is third
        assert clean.stdout == done.stdout == again.stdout
        assert [labels["clawexp.rollout"] for labels in await podman.labels()] == ["warm-0"]
    assert await place[0].labels() == []
    assert list((place[1] / "boxes").iterdir()) == []


async def test_without_a_tasks_image_nothing_starts(imaged: Task, box: Boxes, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="not all images of tasks are there; build them with"):
        async with OPTIONS.open([tmp_path], [imaged]):
            pass
    with pytest.raises(RuntimeFault, match="task t needs an image"):
        async with box(of=imaged):
            pass


async def test_where_limits_are_required_one_that_cannot_hold_is_refused(
    place: tuple[OpenPodman, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = replace(OPTIONS, require_limits=True)
    monkeypatch.setattr(cgroup, "own_groups", lambda _: {})  # as on a host that has none
    with pytest.raises(RuntimeFault, match="no limit on cpu, memory, pids can be set here"):
        async with strict.open([place[1]], []):
            pass


DRIVER = """
import asyncio, sys
from pathlib import Path
from clawexp.records import Command, Needs, Owner, Task
from clawexp.runtime.podman import Podman

async def main():
    task = Task(id="t", instruction="", files={}, grader=None, split="train")
    root = Path(sys.argv[1])
    owner = Owner(run_id="run", rollout_id="r", root=root, proxy_socket=None, proxy_port=1)
    podman = Podman(
        file_bytes=1, memory_mb=100, cpus=1.0, pids=40, disk_mb=500, warm=0, creators=1, require_limits=False,
        oci_runtime="crun", base=None, build_network="none", build_s=60, builds=1,
    )
    async with podman.sandbox(task, Needs(), owner) as sandbox:
        await sandbox.run(Command(argv=("sh", "-c", "echo > ready; setsid sleep 543210 & sleep 543211"), timeout_s=999))

asyncio.run(main())
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_driver_leaves_no_process_and_the_sweep_the_rest(
    place: tuple[OpenPodman, Path], scratch: Path, tmp_path: Path, processes: Processes
) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    driver = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "driver.py"), str(boxes))
    await until(lambda: (boxes / "r/workspace/ready").exists() and len(processes("54321")) >= 2)
    (left,) = scratch.iterdir()
    groups = [Path(line) for line in (left / "groups").read_text().splitlines()]
    assert all(group.is_dir() for group in groups)
    driver.kill()
    await driver.wait()
    await until(lambda: processes("54321") == [] and processes(str(left)) == [])
    assert sweep(scratch) == 1
    assert sweep(boxes) == 1
    assert not left.exists()
    assert not any(group.exists() for group in groups)


NOTHING = "0 containers, 0 processes, 0 mounts, 0 cgroups, 0 sockets, 0 folders"
WHOLE = ("eval.num_tasks=0", "num_tasks=1", "logger=[jsonl,console]")


@pytest.mark.parametrize(
    "choice",
    [
        ("steps=2",),
        pytest.param(("harness=openclaw", "steps=1", "group_size=2"), marks=pytest.mark.harness),
        # Its packages run under the image's Python.
        pytest.param(
            ("harness=mini_swe_agent", "model=scripted", "steps=1", "group_size=1"), marks=pytest.mark.harness
        ),
    ],
)
async def test_a_whole_run_in_containers(
    choice: tuple[str, ...], whole_run: WholeRun, scratch: Path, tmp_path: Path
) -> None:
    done = await asyncio.to_thread(whole_run, "runtime=podman", *choice, *WHOLE)
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.rglob("rollouts.log")
    rollouts = RunFolder(path=log.parent).rollouts(0)
    assert {rollout.facts["runtime"] for rollout in rollouts} == {"podman"}
    assert {rollout.outcome for rollout in rollouts} <= GRADED, [rollout.reason for rollout in rollouts]
    assert list(scratch.iterdir()) == []
    assert f"left of this run: {NOTHING}" in done.stderr


async def test_a_task_of_harbor_is_solved_in_its_own_image_which_is_built_once(
    whole_run: WholeRun, scratch: Path, tmp_path: Path, imaged: Task
) -> None:
    assert imaged.image is not None
    folder = tmp_path / "tasks" / "double"
    for name, text in {
        "task.toml": "",
        "instruction.md": "Write what `double` says to answer.txt.",
        "solution/solve.sh": "double > answer.txt",
        "tests/test.sh": 'test "$(cat answer.txt)" = "$(double)"; echo $((1 - $?)) > /logs/verifier/reward.txt',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    imaged.image.context.rename(folder / "environment")
    chosen = ("taskset=harbor", f"taskset.path={folder.parent}", "taskset.eval_share=0", "model=scripted", "steps=1")
    further = ("runtime=podman", "runtime.base=package:base", "group_size=2", "harness.builtin.tools=[read,write,exec]")
    first = await asyncio.to_thread(whole_run, *chosen, *further, *WHOLE, "hydra.run.dir=first")
    assert first.returncode == 0, first.stderr
    assert "building image 1 of 1, of task double" in first.stderr
    second = await asyncio.to_thread(whole_run, *chosen, *further, *WHOLE, "hydra.run.dir=second")
    assert second.returncode == 0, second.stderr
    assert "building image" not in second.stderr
    for name in ("first", "second"):
        rollouts = RunFolder(path=tmp_path / name).rollouts(0)
        assert [rollout.reward for rollout in rollouts] == [1.0, 1.0], [rollout.reason for rollout in rollouts]
    assert list(scratch.iterdir()) == []


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for a condition; a hang fails."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is outside of this program
            await asyncio.sleep(0.05)
