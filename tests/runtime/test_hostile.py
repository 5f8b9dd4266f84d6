"""Attempts to get out of a sandbox, or to harm what is outside. None may succeed in a runtime that isolates.

Each is tried in `local` too, where nothing but the driver's own rights stops it: an attempt that fails there as well
would prove nothing. `--log-cli-level=INFO` shows what stopped each.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hostile_programs
import pytest
import pytest_asyncio
from hostile_programs import ATTEMPTS, World

from clawexp.errors import RuntimeFault
from clawexp.protocols import Openable, Runtime
from clawexp.records import Command, Finished, Needs, Owner, Sandbox, Task
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.runtime.cgroup import own_groups
from clawexp.runtime.local import Local
from clawexp.runtime.podman import Podman

pytestmark = pytest.mark.asyncio(loop_scope="module")

log = logging.getLogger(__name__)

ISOLATING: dict[str, Runtime] = {
    "bubblewrap": Bubblewrap(
        file_bytes=100_000, memory_mb=100, cpus=1.0, pids=40, disk_mb=16, require_limits=bool(own_groups())
    ),
    "podman": Podman(
        file_bytes=100_000,
        memory_mb=100,
        cpus=1.0,
        pids=40,
        disk_mb=16,
        warm=0,
        creators=2,
        require_limits=bool(own_groups()),
        oci_runtime="crun",
        base="package:base",
        build_network="none",
        build_s=600,
        builds=2,
    ),
}
LOCAL = Local(file_bytes=100_000, allow_unsafe=True)
BOMBS = {"fork_bomb": "pids", "memory_bomb": "memory", "memory_bomb_in_shared_memory": "memory"}
"""Attempts that a control group stops, and which."""
NOT_IN_LOCAL = {"descriptors_that_were_left_open", "terminal_of_the_driver"}
"""Stopped there, too: their guard is taken away in a test of their own."""
PORT = 8089
KEPT = 10_000
"""Bytes of output."""


class Saying(socketserver.BaseRequestHandler):
    """Tells whoever comes whose service it is."""

    def handle(self) -> None:
        if isinstance(self.request, tuple):
            self.request[1].sendto(self.request[0], self.client_address)
        else:
            self.request.sendall(b"a service of the host\n")


class Tcp6(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6


class Abstract(socketserver.ThreadingUnixStreamServer):
    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


@contextlib.contextmanager
def served(server: socketserver.BaseServer) -> Iterator[Any]:
    """Serve in a thread; the address."""
    thread = threading.Thread(target=lambda: server.serve_forever(0.05))
    thread.start()
    try:
        yield server.server_address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def shared_segment() -> Iterator[int]:
    """The key of a segment of shared memory."""
    libc, key = ctypes.CDLL(None, use_errno=True), 0x0C1A0000 | os.getpid() & 0xFFFF
    segment = libc.shmget(key, 4096, 0o1666)
    assert segment >= 0
    try:
        yield key
    finally:
        libc.shmctl(segment, 0, None)


@contextlib.contextmanager
def sleeping(word: str, secret: str) -> Iterator[int]:
    """A process of the host, with a name and something to hide."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", word], env={"KEY": secret}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def device() -> os.stat_result:
    """One of the host's that this process can open, if there is any."""
    for entry in sorted(Path("/dev").iterdir(), key=lambda each: not each.is_block_device()):
        if entry.is_block_device() or entry.is_char_device():
            with contextlib.suppress(OSError):
                os.close(os.open(entry, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
                return entry.stat()
    raise AssertionError


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """What there is to be had on the host."""
    folder = tmp_path_factory.mktemp("hostile")
    folder.chmod(0o711)
    host = folder / "host"
    for name in ("secret/key.txt", "solution/solve.sh", "tests/grader.py", "package/main.js", "target/grader.py"):
        (host / name).parent.mkdir(parents=True)
        (host / name).write_text("of the host")
    mark = f"{os.getpid()}"
    shared = Path("/dev/shm") / f"clawexp-hostile-{mark}"
    shared.write_text("of the host")
    with contextlib.ExitStack() as stack:
        stack.callback(shared.unlink)
        ports = [
            stack.enter_context(served(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Saying)))[1] for _ in range(2)
        ]
        for name in ("proxy.sock", "other.sock", "idle.sock"):
            stack.enter_context(served(socketserver.ThreadingUnixStreamServer(str(folder / name), Saying)))
            (folder / name).chmod(0o666)
        stack.enter_context(served(Abstract(f"\0clawexp-hostile-{mark}", Saying)))
        yield {
            "folder": str(folder),
            "port": ports[0],
            "other_proxy_port": ports[1],
            "port6": stack.enter_context(served(Tcp6(("::1", 0), Saying)))[1],
            "name_server": stack.enter_context(served(socketserver.UDPServer(("127.0.0.1", 0), Saying)))[1],
            "abstract": f"clawexp-hostile-{mark}",
            "other_socket": str(folder / "other.sock"),
            "proxy_socket": str(folder / "idle.sock"),
            "victim_pid": stack.enter_context(sleeping(f"victim-{mark}", f"hidden-{mark}")),
            "victim_word": f"victim-{mark}",
            "victim_secret": f"hidden-{mark}",
            "neighbour_secret": f"neighbours-{mark}",
            "shared_key": stack.enter_context(shared_segment()),
            "shared_file": shared.name,
            "device": device().st_rdev,
            "device_mode": device().st_mode,
            "secret_file": str(host / "secret/key.txt"),
            "solution": str(host / "solution/solve.sh"),
            "grader": str(host / "tests/grader.py"),
            "target": str(host / "target/grader.py"),
            "package": str(host / "package"),
            "many_processes": 120,
            "much_memory": 200 << 20,
            "much_disk": 48 << 20,
            "much_output": 4 << 20,
            "patience_s": 6,
        }


NEIGHBOUR = """
import os, socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    with open("port", "w") as file:
        file.write(str(server.getsockname()[1]))
    os.rename("port", "there")
    while True:
        server.accept()[0].send(b"the neighbour")
"""


@dataclass(frozen=True)
class Cell:
    """A sandbox with a hostile program in it."""

    sandbox: Sandbox
    world: World

    async def run(self, name: str, **changes: Any) -> Finished:
        program = f"{self.sandbox.workspace}/hostile_programs.py"
        world = {**self.world, **changes}
        return await self.sandbox.run(
            Command(
                argv=(self.sandbox.python, "-I", "-S", program, name),
                env={"PATH": "/usr/bin:/bin"},
                stdin=json.dumps(world).encode(),
                timeout_s=60,
                output_bytes=world.get("kept", KEPT),
            )
        )


class NoGrader:
    async def grade(self, sandbox: Sandbox) -> Any:
        raise AssertionError


@contextlib.asynccontextmanager
async def celled(runtime: Runtime, world: World) -> AsyncIterator[Cell]:
    """A sandbox for the attempts, and a neighbour at work."""
    folder = Path(world["folder"])
    root = folder / type(runtime).__name__
    files = {"hostile_programs.py": Path(hostile_programs.__file__).read_bytes()}
    task = Task(id="t", instruction="", files=files, grader=NoGrader(), split="train")
    needs = Needs(mounts={world["package"]: world["package"]})
    owner = Owner(run_id="run", rollout_id="one", root=root, proxy_socket=folder / "proxy.sock", proxy_port=PORT)
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(runtime, Openable):
            runtime = await stack.enter_async_context(runtime.open([folder], []))
        place = runtime.sandbox(task, Needs(), replace(owner, rollout_id="neighbour", proxy_socket=None))
        neighbour = await stack.enter_async_context(place)
        await neighbour.put({"~/key.txt": b"of the neighbour"})
        key = root / "neighbour/home/key.txt"
        assert key.read_bytes() == b"of the neighbour"
        sandbox = await stack.enter_async_context(runtime.sandbox(task, needs, owner))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        argv = (neighbour.python, "-I", "-c", NEIGHBOUR)
        command = Command(argv=argv, env={"KEY": world["neighbour_secret"]}, timeout_s=600)
        task_of_neighbour = group.create_task(neighbour.run(command))
        async with asyncio.timeout(60):
            while "there" not in await neighbour.files():  # noqa: ASYNC110 - it is another program
                await asyncio.sleep(0.02)
        port = int(await neighbour.get("there"))
        yield Cell(sandbox, {**world, "neighbour_port": port, "neighbour_key": str(key)})
        task_of_neighbour.cancel()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ISOLATING)
async def cell(request: pytest.FixtureRequest, world: World) -> AsyncIterator[Cell]:
    """In a runtime that isolates."""
    runtime = ISOLATING[request.param]
    if isinstance(runtime, Podman):
        runtime.prepare()
    async with celled(runtime, world) as cell:
        yield cell


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(world: World) -> AsyncIterator[Cell]:
    """Where nothing isolates."""
    async with celled(LOCAL, world) as cell:
        yield cell


def told(done: Finished) -> str:
    """What became of an attempt: its own last word, or the runtime's."""
    lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
    ends = [line for line in lines if line.startswith(("SUCCEEDED: ", "stopped: ", "out of memory", "disk full"))]
    assert ends, f"it did not come to an end: {done}"
    return ends[-1]


async def tried(cell: Cell, name: str) -> str:
    if name != "kill_by_name":
        return told(await cell.run(name, proxy_socket="/run/clawexp/proxy.sock"))
    word = f"prey-{os.getpid()}-{cell.sandbox.facts['runtime']}"
    with sleeping(word, ""):
        return told(await cell.run(name, prey_word=word))


@pytest.mark.parametrize("name", ATTEMPTS)
async def test_an_attempt_is_stopped(cell: Cell, name: str) -> None:
    controller = BOMBS.get(name)
    if controller is not None and controller not in own_groups():
        assert cell.sandbox.facts["limits_missing"], "where it cannot be stopped, the sandbox says so"
        return
    end = await tried(cell, name)
    log.info("%s: %s: %s (%s)", cell.sandbox.facts["runtime"], name, end, ATTEMPTS[name].guard)
    assert not end.startswith("SUCCEEDED"), ATTEMPTS[name].guard


@pytest.mark.parametrize("name", [name for name in ATTEMPTS if name not in NOT_IN_LOCAL])
async def test_the_same_attempt_succeeds_where_nothing_isolates(local: Cell, name: str) -> None:
    end = told(await local.run(name)) if name != "kill_by_name" else await tried(local, name)
    log.info("local: %s: %s", name, end)
    possible = os.geteuid() == 0 or not ATTEMPTS[name].by_root
    assert end.startswith("SUCCEEDED") is possible, end


async def test_there_are_many_attempts() -> None:
    assert len(ATTEMPTS) >= 40


async def test_the_way_to_the_model_is_open(cell: Cell) -> None:
    assert told(await cell.run("host_port", port=PORT)) == "SUCCEEDED: a service of the host"


async def alone(name: str, world: World, *before: str, **options: Any) -> str:
    """What a program says that is started without a sandbox."""
    argv = [*before, sys.executable, "-I", "-S", hostile_programs.__file__, name]
    done = await asyncio.to_thread(subprocess.run, argv, stdout=subprocess.PIPE, text=True, **options)
    return done.stdout


async def test_a_descriptor_that_is_passed_on_is_found(world: World) -> None:
    held = os.open(world["folder"], os.O_RDONLY)
    try:
        said = await alone("descriptors_that_were_left_open", world, input=json.dumps(world), pass_fds=[held])
    finally:
        os.close(held)
    assert said.startswith(f"SUCCEEDED: ['{world['folder']}'")


async def test_a_terminal_that_is_passed_on_is_found(world: World) -> None:
    ours, theirs = os.openpty()
    try:
        before = ("setsid", "--ctty", "--wait", "sh", "-c", 'echo {} | "$@"', "sh")
        assert await alone("terminal_of_the_driver", world, *before, stdin=theirs) == "SUCCEEDED: wrote 1 byte\n"
    finally:
        os.close(ours)
        os.close(theirs)


async def test_nobody_outlives_the_command_to_change_the_grader(cell: Cell) -> None:
    assert told(await cell.run("linger")).startswith("SUCCEEDED")
    await cell.sandbox.put({"grader.py": b"right"})
    await asyncio.sleep(1)
    assert await cell.sandbox.get("grader.py") == b"right"


async def test_somebody_does_where_nothing_isolates(local: Cell) -> None:
    assert told(await local.run("linger", patience_s=60)).startswith("SUCCEEDED")
    await local.sandbox.put({"grader.py": b"right"})
    async with asyncio.timeout(60):
        while await local.sandbox.get("grader.py") != b"changed":  # noqa: ASYNC110 - it is another program
            await asyncio.sleep(0.02)


async def cleaned(cell: Cell) -> None:
    await cell.sandbox.run(
        Command(argv=("rm", "-rf", "answer.txt", "folder", "grader.py", "tests", "pipe"), env={"PATH": "/usr/bin:/bin"})
    )


PLANTED: Sequence[str] = ("answer.txt", "folder/key.txt", "pipe", "grader.py", "tests/grader.py")


async def test_links_and_pipes_do_not_mislead_the_driver(cell: Cell, world: World) -> None:
    await cleaned(cell)
    assert told(await cell.run("plant")).startswith("SUCCEEDED")
    (link,) = Path(world["folder"]).glob(f"{cell.sandbox.facts['runtime'].capitalize()}/one/workspace/answer.txt")
    assert link.readlink() == Path(world["secret_file"])
    for path in PLANTED:
        with pytest.raises(FileNotFoundError):
            await cell.sandbox.get(path)
    await cell.sandbox.put({"grader.py": b"right", "tests/grader.py": b"right"})
    assert await cell.sandbox.get("tests/grader.py") == b"right"
    assert Path(world["target"]).read_text() == "of the host"
    await cleaned(cell)


async def test_the_same_links_mislead_whoever_follows_them(local: Cell, world: World) -> None:
    await cleaned(local)
    assert told(await local.run("plant")).startswith("SUCCEEDED")
    workspace = Path(local.sandbox.workspace)
    assert {(workspace / path).read_text() for path in PLANTED if path != "pipe"} == {"of the host"}
    (workspace / "grader.py").write_text("of the host, written to")
    assert Path(world["target"]).read_text() == "of the host, written to"
    Path(world["target"]).write_text("of the host")
    await cleaned(local)


@pytest.mark.parametrize("path", ["../up.txt", "a/../../up.txt", "/etc/up.txt", "~/../up.txt", "..", "a\0b"])
async def test_a_path_that_leads_out_is_refused(cell: Cell, path: str) -> None:
    with pytest.raises(RuntimeFault, match="is no path in a sandbox"):
        await cell.sandbox.put({path: b"x"})
    with pytest.raises(RuntimeFault, match="is no path in a sandbox"):
        await cell.sandbox.get(path)


async def test_a_flood_of_output_is_not_kept(cell: Cell) -> None:
    assert len((await cell.run("flood")).stdout) == KEPT
    much = cell.world["much_output"]
    assert len((await cell.run("flood", kept=2 * much)).stdout) > much
