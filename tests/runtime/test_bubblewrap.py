import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished, Image, Needs, Owner, Sandbox, Task
from clawexp.runtime.bubblewrap import Bubblewrap, unavailable

RUNTIME = Bubblewrap(file_bytes=100_000, memory_mb=1000, cpus=2.0, pids=200, disk_mb=500, require_limits=False)
PYTHON = str(Path(sys.executable).resolve())
Owners = Callable[..., Owner]
Processes = Callable[[str], list[int]]


def shell(script: str, **options) -> Command:
    return Command(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}, **options)


def python(script: str, **options) -> Command:
    return Command(argv=(PYTHON, "-I", "-S", "-c", script), **options)


async def ran(sandbox: Sandbox, script: str, **options) -> Finished:
    return await sandbox.run(shell(script, **options))


async def proxy(path: Path) -> asyncio.Server:
    """A unix socket that answers one line with the same in capitals."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_unix_server(answer, str(path))


def test_bubblewrap_works_on_this_machine():
    assert unavailable() is None


async def test_a_command_sees_the_task_as_an_ordinary_user(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        done = await ran(sandbox, "pwd; id -u; whoami; cat data/a.txt; echo out > new.txt; env | sort")
        assert done.code == 0, done.stderr
        lines = done.stdout.decode().split()
        assert lines[:4] == ["/work", "1000", "agent", "alphaPATH=/usr/bin:/bin"]
        assert lines[4:] == ["PWD=/work"]
        assert await sandbox.get("new.txt") == b"out\n"
        assert await sandbox.files() == {"data/a.txt": 5, "new.txt": 4}


async def test_files_last_from_one_command_to_the_next(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        await ran(sandbox, "echo one > /home/agent/x; echo two > /tmp/y")
        assert (await ran(sandbox, "cat /home/agent/x /tmp/y")).stdout == b"one\ntwo\n"


async def test_input_reaches_the_command_and_only_the_last_output_is_kept(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        done = await sandbox.run(Command(argv=("cat",), stdin=b"x" * 3_000_000 + b"end", output_bytes=1000))
        assert (len(done.stdout), done.stdout[-4:]) == (1000, b"xend")


async def test_output_is_heard_as_it_comes(task: Task, owner: Owners):
    heard: list[tuple[str, bytes]] = []
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:

        def hear(stream: str, data: bytes) -> None:
            heard.append((stream, data))
            sandbox.folder.put(f"go{len(heard)}", b"")  # pyright: ignore[reportAttributeAccessIssue]

        wait = "while [ ! -e go{} ]; do sleep 0.01; done"
        done = await sandbox.run(shell(f"echo a; {wait.format(1)}; echo b >&2; {wait.format(2)}; echo c"), hear)
        assert heard == [("stdout", b"a\n"), ("stderr", b"b\n"), ("stdout", b"c\n")]
        assert (done.stdout, done.stderr) == (b"a\nc\n", b"b\n")


async def test_commands_share_a_life_until_it_is_stopped(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        birth = "cut -d ' ' -f 22 /proc/1/stat"  # the number of a namespace is given again
        births = [(await ran(sandbox, birth)).stdout for _ in range(2)]
        assert births[0] == births[1]
        await ran(sandbox, "echo x > /dev/shm/left; echo kept > kept")
        await sandbox.stop()
        done = await ran(sandbox, f"{birth}; ls /dev/shm >&2; cat kept >&2")
        assert done.stdout != births[0]
        assert done.stderr == b"kept\n"


HAVOC = """
    rm -r data; echo more > more; mkdir -p d/e; mkfifo d/pipe; ln -s / d/root; echo x > ~/x; echo y > /tmp/y
    chmod 0 d/e; chmod 700 .; echo z > .hidden
"""


async def test_a_reset_brings_back_the_beginning(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        assert (await ran(sandbox, f"HOME=/home/agent; {HAVOC}")).code == 0
        await sandbox.reset()
        assert await sandbox.files() == {"data/a.txt": 5}
        done = await ran(sandbox, "ls -A . /home/agent /tmp; stat -c %a . /tmp")
        assert done.stdout.decode().split() == [".:", "data", "/home/agent:", "/tmp:", "755", "755"]


async def test_a_reset_brings_back_a_snapshot_as_often_as_asked(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        await ran(sandbox, "echo one > one; ln -s one link; chmod 600 one; echo h > /home/agent/h; mkdir empty")
        kept = await sandbox.snapshot()
        for _ in range(2):
            await ran(sandbox, f"HOME=/home/agent; rm -r one empty; {HAVOC}")
            await sandbox.reset(kept)
            assert await sandbox.files() == {"data/a.txt": 5, "one": 4}
            done = await ran(sandbox, "stat -c %a one; cat link; ls -A . /home/agent /tmp")
            expected = ["600", "one", ".:", "data", "empty", "link", "one", "/home/agent:", "h", "/tmp:"]
            assert done.stdout.decode().split() == expected
        with pytest.raises(RuntimeFault, match="no snapshot 'another'"):
            await sandbox.reset("another")


async def test_exit_statuses_and_signals_are_told(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        assert (await ran(sandbox, "exit 7")).code == 7
        assert (await ran(sandbox, "kill -TERM $$")).code == -signal.SIGTERM
        assert (await sandbox.run(Command(argv=("no-such-program",)))).code == 127


async def test_there_is_no_network(task: Task, owner: Owners):
    host = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
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
    async with host, RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        done = await sandbox.run(Command(argv=(PYTHON, "-I", "-c", script)))
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
    task: Task, owner: Owners, tmp_path: Path, dials_socket: bool, connect: str
):
    path = tmp_path / "p.sock"
    needs = Needs(dials_socket=dials_socket)
    async with await proxy(path), RUNTIME.sandbox(task, needs, owner(socket=path)) as sandbox:
        assert sandbox.facts["proxy_socket"] == "/run/clawexp/proxy.sock"
        assert sandbox.facts["proxy_url"] == "http://127.0.0.1:8089"
        done = await sandbox.run(Command(argv=(PYTHON, "-I", "-c", TALK.format(connect=connect))))
        assert done.stdout == b"HELLO\n", done.stderr


async def test_the_forwarder_passes_on_how_the_command_ended(task: Task, owner: Owners, tmp_path: Path):
    path = tmp_path / "p.sock"
    async with await proxy(path), RUNTIME.sandbox(task, Needs(), owner(socket=path)) as sandbox:
        assert (await ran(sandbox, "exit 7")).code == 7
        assert (await ran(sandbox, "kill -KILL $$")).code == -signal.SIGKILL
        assert (await sandbox.run(Command(argv=("no-such-program",)))).code == 127


async def test_the_host_cannot_be_seen_or_changed(task: Task, owner: Owners):
    async with (
        RUNTIME.sandbox(task, Needs(), owner("r1")) as sandbox,
        RUNTIME.sandbox(task, Needs(), owner("r2")) as other,
    ):
        await other.put({"secret.txt": b"other"})
        script = f"""
            ls {Path.home()}/.ssh {Path(__file__).parent} {owner().root} 2>/dev/null
            cat /etc/shadow 2>/dev/null
            touch /usr/x /etc/x /x 2>/dev/null
            echo evil > /proc/sys/kernel/hostname 2>/dev/null
            echo evil > /proc/sys/kernel/core_pattern 2>/dev/null
            grep -c . /proc/self/mounts > /dev/null; grep CapEff /proc/self/status
            find /work /home /tmp /root /run /etc /var -name secret.txt 2>/dev/null
        """
        done = await ran(sandbox, script)
        assert done.stdout.decode().split() == ["CapEff:", "0000000000000000"]
        assert not Path("/usr/x").exists()


@pytest.fixture
def outside() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


async def test_killing_everything_inside_harms_nothing_outside(
    task: Task, owner: Owners, outside: subprocess.Popen[bytes]
):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        script = "import os, signal; os.kill(-1, signal.SIGKILL)"
        await sandbox.run(python(script))
        done = await ran(sandbox, f"pkill -9 -f . ; kill -9 {outside.pid} {os.getpid()}; exit 3")
        assert done.code != 0
    assert outside.poll() is None


async def test_a_timeout_ends_the_whole_tree(task: Task, owner: Owners, processes: Processes):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        # A daemon in a session of its own that holds no pipe: only the process namespace can end it.
        script = "setsid sleep 987654 </dev/null >/dev/null 2>&1 & (trap '' TERM; sleep 987655) & sleep 987656"
        done = await ran(sandbox, script, timeout_s=0.5)
        assert (done.timed_out, done.code) == (True, -signal.SIGKILL)
        assert done.wall_s < 10
        assert processes("98765") == []


async def test_nothing_runs_on_after_a_command_has_ended(task: Task, owner: Owners, processes: Processes):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        done = await ran(sandbox, "setsid sleep 876543 >/dev/null 2>&1 & exit 0")
        assert done.code == 0
        assert processes("876543") == []


async def test_a_fork_bomb_ends_with_its_timeout(task: Task, owner: Owners, processes: Processes):
    bomb = """
import os, time
for _ in range(7):
    os.fork()
time.sleep(765432)
"""
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        done = await sandbox.run(python(bomb, timeout_s=1.0))
        assert done.timed_out
        assert processes("765432") == []


async def test_cancelling_a_command_ends_it_and_removes_the_sandbox(task: Task, owner: Owners, processes: Processes):
    async def forever() -> None:
        async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
            await ran(sandbox, "sleep 654321", timeout_s=100)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await forever()
    assert processes("654321") == []
    assert list(owner().root.iterdir()) == []


async def test_a_sandbox_is_removed_whatever_the_harness_did_to_it(task: Task, owner: Owners):
    script = """
import os
os.makedirs("locked/inner"); open("locked/inner/f", "w").close()
os.symlink("/usr", "link"); os.mkfifo("pipe")
os.chmod("locked/inner", 0); os.chmod("locked", 0)
for _ in range(1100):
    os.mkdir("d"); os.chdir("d")
"""
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        done = await sandbox.run(python(script))
        assert done.code == 0, done.stderr
        assert "data/a.txt" in await sandbox.files()
    assert list(owner().root.iterdir()) == []
    assert Path("/usr/bin").is_dir()


async def test_one_name_is_one_live_sandbox(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()):
        with pytest.raises(RuntimeFault, match="live sandbox"):
            async with RUNTIME.sandbox(task, Needs(), owner()):
                pass


async def test_a_missing_mount_is_a_fault_of_the_runtime(task: Task, owner: Owners):
    needs = Needs(mounts={"/no/such/folder": "/no/such/folder"})
    async with RUNTIME.sandbox(task, needs, owner()) as sandbox:
        with pytest.raises(RuntimeFault, match="/no/such/folder"):
            await ran(sandbox, "true")


async def test_a_mount_in_the_workspace_is_refused(task: Task, owner: Owners):
    with pytest.raises(RuntimeFault, match="XDG_CACHE_HOME"):
        async with RUNTIME.sandbox(task, Needs(mounts={"/work/cache": "/work/cache"}), owner()):
            pass
    assert list(owner().root.iterdir()) == []


async def test_mounts_are_read_only(task: Task, owner: Owners, tmp_path: Path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/main.js").write_text("1")
    folder = str(tmp_path / "package")
    async with RUNTIME.sandbox(task, Needs(mounts={folder: folder}), owner()) as sandbox:
        done = await ran(sandbox, f"cat {folder}/main.js; echo 2 > {folder}/main.js")
        assert done.stdout == b"1"
        assert done.code != 0


DRIVER = """
import asyncio, sys
from pathlib import Path
from clawexp.records import Command, Needs, Owner, Task
from clawexp.runtime.bubblewrap import Bubblewrap

async def main():
    task = Task(id="t", instruction="", files={}, grader=None, split="train")
    owner = Owner(run_id="run", rollout_id="r", root=Path(sys.argv[1]), proxy_socket=None, proxy_port=1)
    options = {"memory_mb": 1000, "cpus": 2.0, "pids": 200, "disk_mb": 500, "require_limits": False}
    async with Bubblewrap(file_bytes=1, **options).sandbox(task, Needs(), owner) as sandbox:
        await sandbox.run(Command(argv=("sh", "-c", "echo > ready; setsid sleep 543210 & sleep 543211"), timeout_s=99))

asyncio.run(main())
"""


def test_a_killed_driver_leaves_no_process(tmp_path: Path, processes: Processes):
    (tmp_path / "driver.py").write_text(DRIVER)
    with subprocess.Popen([sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "boxes")]) as driver:
        until(lambda: (tmp_path / "boxes/r/workspace/ready").exists() and len(processes("54321")) >= 2)
        driver.send_signal(signal.SIGKILL)
    until(lambda: processes("54321") == [])


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for a condition; a hang fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_a_task_has_its_workspace_and_further_folders_where_its_programs_name_them(task: Task, owner: Owners):
    there = "/root/.openclaw/workspace"
    placed = dataclasses.replace(task, workspace=there, folders=("/tests", "/logs/verifier"))
    async with RUNTIME.sandbox(placed, Needs(), owner()) as sandbox:
        script = f"pwd; cat {there}/data/a.txt; echo 1 > /logs/verifier/reward.txt"
        await sandbox.put({"/tests/deep/test.sh": script.encode()})
        done = await ran(sandbox, "sh /tests/deep/test.sh")
        assert (done.code, done.stdout, done.stderr) == (0, f"{there}\nalpha".encode(), b"")
        assert await sandbox.get("/logs/verifier/reward.txt") == b"1\n"
        assert list(await sandbox.files()) == ["data/a.txt"]
        with pytest.raises(RuntimeFault, match="no path in a sandbox"):
            await sandbox.put({"/etc/passwd": b""})


async def test_a_task_that_needs_an_image_or_the_hosts_folders_is_refused_by_name(task: Task, owner: Owners):
    image = Image(context=Path("environment"), required=True)
    for refused in (dataclasses.replace(task, image=image), dataclasses.replace(task, workspace="/usr/src")):
        with pytest.raises(RuntimeFault, match="task t "):
            async with RUNTIME.sandbox(refused, Needs(), owner()):
                pass
