"""Both forms of the program, as process 1 of real process namespaces."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Finished
from clawexp.runtime import compiled, inside
from clawexp.runtime.cgroup import Group, Limits
from clawexp.runtime.compiled import Program
from clawexp.runtime.life import Life, greeted, lived
from clawexp.runtime.process import start

Processes = Callable[[str], list[int]]
Lives = Callable[..., contextlib.AbstractAsyncContextManager[Life]]
BWRAP = ("bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL", "--bind", "/", "/")
ENV = {"PATH": "/usr/bin:/bin"}
PORT = 8089
CLIENT = """
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.sendall(b"x" * 3_000_000)
c.shutdown(socket.SHUT_WR)
received = 0
while chunk := c.recv(65536):
    received += len(chunk)
print(received)
"""


@pytest.fixture(params=["compiled", "interpreted"])
def program(request: pytest.FixtureRequest) -> Program:
    interpreted = Program(path=Path(inside.__file__), interpreted=True)
    return interpreted if request.param == "interpreted" else compiled.program()


UNLIMITED = Group([], "none", Limits(memory_mb=1, cpus=1.0, pids=1))
"""Without groups no limit is in force."""


@pytest.fixture
def lives(program: Program) -> Lives:
    """Begins a life around the host's own files, with words for process 1."""

    @contextlib.asynccontextmanager
    async def begin(*words: str) -> AsyncIterator[Life]:
        driver, there = socket.socketpair()
        driver.setblocking(False)
        driver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        first = program.argv(str(program.path), sys.executable)
        argv = (*BWRAP, "--proc", "/proc", "--dev", "/dev", *first, str(there.fileno()), *words)
        with driver, there:
            async with start(argv, Command(argv=argv), cwd="/", pass_fds=(there.fileno(),)) as running:
                there.close()
                async with lived(driver, await greeted(driver), UNLIMITED) as life:
                    yield life
                assert running.stderr.kept() == b""

    return begin


async def ran(life: Life, *argv: str, cwd: str = "/", **options) -> Finished:
    command = Command(argv=argv, **{"env": ENV, **options})
    return await life.run(command, argv, cwd, None, None)


def test_the_tests_have_a_compiler():
    assert not compiled.program().interpreted


@pytest.mark.parametrize("compiler", [None, "false", "/no/such/compiler"])
def test_without_a_compiler_that_works_there_is_no_compiled_one(
    compiler: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled.compiled(compiler) is None
    assert list(tmp_path.rglob("*-*")) == []


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = compiled.compiled("cc")
    assert made is not None
    assert compiled.compiled(None) == made


async def test_a_command_gets_its_input_folder_and_environment_and_nothing_else(lives: Lives, tmp_path: Path):
    script = "cat; pwd; env | grep -v '^_' | sort; echo bad >&2; ls /proc/self/fd | wc -l; exit 5"
    async with lives() as life:
        env = {"WORD": "a=b", "PATH": "/bin"}
        done = await ran(life, "/bin/sh", "-c", script, cwd=str(tmp_path), stdin=b"given\n", env=env)
    lines = done.stdout.decode().split()
    assert lines[:-1] == ["given", str(tmp_path), "PATH=/bin", f"PWD={tmp_path}", "WORD=a=b"]
    assert int(lines[-1]) <= 4
    assert (done.code, done.stderr) == (5, b"bad\n")


async def test_an_order_of_any_length_is_taken(lives: Lives):
    words = ["word" * 20] * 5000
    async with lives() as life:
        assert (await ran(life, "/bin/sh", "-c", "echo $#", "sh", *words)).stdout == b"5000\n"


async def test_signals_are_told_and_not_ignored_by_the_command(lives: Lives):
    async with lives() as life:
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            assert (await ran(life, "/bin/sh", "-c", f"kill -{int(number)} $$; exit 0")).code == -number


async def test_what_could_not_be_started_is_told_and_the_next_one_is(lives: Lives):
    async with lives() as life:
        done = await ran(life, "no-such-program")
        assert (done.code, done.stderr) == (127, b"no-such-program: No such file or directory\n")
        with pytest.raises(RuntimeFault, match="/nowhere"):
            await ran(life, "true", cwd="/nowhere")
        assert (await ran(life, "true")).code == 0


async def test_a_program_is_looked_for_where_the_commands_own_path_says(lives: Lives, tmp_path: Path):
    (tmp_path / "mine").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "mine").chmod(0o755)
    async with lives() as life:
        assert (await ran(life, "mine", env={"PATH": str(tmp_path)})).stdout == b"mine\n"
        assert (await ran(life, "mine", env={})).code == 127
        assert (await ran(life, "cat", env={})).code == 0


async def test_all_that_a_command_leaves_is_gone_when_it_is_told(lives: Lives, processes: Processes):
    script = "for _ in 1 2 3; do setsid sh -c 'sleep 135.79 & sleep 135.79' >/dev/null 2>&1 & done; exit 3"
    async with lives() as life:
        assert (await ran(life, "/bin/sh", "-c", script)).code == 3
        assert processes("135.79") == []
        assert not life.over


async def test_a_signal_from_inside_does_not_reach_it_nor_can_it_be_traced(lives: Lives):
    script = """
import ctypes, os
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
for act in (lambda: open("/proc/1/mem", "r+b"), lambda: os.readlink("/proc/1/fd/0")):
    try:
        act()
        print("reached")
    except PermissionError:
        pass
print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))
"""
    async with lives() as life:
        # Root of the host has no right over it but by its namespace, where it has none.
        done = await ran(life, sys.executable, "-c", script)
        assert done.stdout == b"-1\n", done
        assert (await ran(life, "echo", "alive")).stdout == b"alive\n"


SHARED = {
    "a shared memory": "open('/dev/shm/x', 'w')",
    "a segment": "libc.shmget(1, 4096, 0o1600)",
    "semaphores": "libc.semget(1, 1, 0o1600)",
    "a queue": "libc.msgget(1, 0o1600)",
    "a limit of the first process": "resource.prlimit(1, resource.RLIMIT_FSIZE, (0, 0))",
    "its priority": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "its processors": "os.sched_setaffinity(1, {min(os.sched_getaffinity(1))})",
}


@pytest.mark.parametrize("what", SHARED)
async def test_a_life_that_was_changed_for_later_commands_is_known(lives: Lives, what: str):
    script = f"import ctypes, os, resource; libc = ctypes.CDLL(None); {SHARED[what]}"
    async with lives() as life:
        assert (await ran(life, sys.executable, "-c", "import os; os.fork()")).code == 0
        assert await life.is_as_begun()
        assert (await ran(life, sys.executable, "-c", script)).code == 0
        assert not await life.is_as_begun()


async def test_every_byte_goes_to_the_proxy_and_back_and_so_does_the_end(lives: Lives, tmp_path: Path):
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with (
        await asyncio.start_unix_server(echo, str(tmp_path / "s")),
        lives(str(PORT), str(tmp_path / "s")) as life,
    ):
        both = f"{sys.executable} -c '{CLIENT}' {PORT} & {sys.executable} -c '{CLIENT}' {PORT}; wait"
        assert (await ran(life, "sh", "-c", both)).stdout == b"3000000\n3000000\n"


async def test_a_proxy_that_is_gone_closes_the_connection(lives: Lives, tmp_path: Path):
    client = f"import socket; print(socket.create_connection(('127.0.0.1', {PORT})).recv(1))"
    async with lives(str(PORT), str(tmp_path / "none")) as life:
        assert (await ran(life, sys.executable, "-c", client)).stdout == b"b''\n"


def test_outside_of_a_sandbox_it_does_nothing(program: Program):
    argv = program.argv(str(program.path), sys.executable)
    done = subprocess.run([*argv, "0"], capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert b"process 1 of a sandbox or none" in done.stderr
