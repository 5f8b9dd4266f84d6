import asyncio
import contextlib
import platform
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from clawexp.commands.compose import check
from clawexp.errors import ConfigError, RuntimeFault
from clawexp.records import Command, Finished, Needs, Owner, Sandbox, Task
from clawexp.runtime import oci
from clawexp.runtime.cgroup import own_groups
from clawexp.runtime.oci import OciRuntime, refused
from clawexp.runtime.podman import OpenPodman, Podman
from clawexp.runtime.sentry import users

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = Podman(
    file_bytes=100_000,
    memory_mb=300,
    cpus=2.0,
    pids=150,
    disk_mb=50,
    warm=0,
    creators=2,
    require_limits=False,
    oci_runtime="runsc",
    base="package:base",
    build_network="none",
    build_s=600,
    builds=2,
)
Boxes = Callable[..., contextlib.AbstractAsyncContextManager[Sandbox]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[OpenPodman, Path]]:
    """A live podman whose containers are gVisor's, and the folder below which they lie."""
    folder = tmp_path_factory.mktemp("gvisor")
    folder.chmod(0o711)
    OPTIONS.prepare()
    async with OPTIONS.open([folder], []) as podman:
        assert isinstance(podman, OpenPodman)
        yield podman, folder
        assert await podman.labels() == []


@pytest.fixture
def box(place: tuple[OpenPodman, Path], task: Task) -> Boxes:
    """Makes sandboxes of one task."""
    podman, folder = place

    def make(rollout_id: str = "r1", socket: Path | None = None):
        owner = Owner(run_id="run", rollout_id=rollout_id, root=folder / "boxes", proxy_socket=socket, proxy_port=8089)
        return podman.sandbox(task, Needs(), owner)

    return make


async def ran(sandbox: Sandbox, *argv: str, **options) -> Finished:
    return await sandbox.run(Command(argv=argv, env={"PATH": "/usr/bin:/bin"}, **options))


async def shell(sandbox: Sandbox, script: str, **options) -> Finished:
    return await ran(sandbox, "sh", "-c", script, **options)


def gvisors(name: str = "") -> set[int]:
    """Processes of gVisor on the host."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"runsc-{name}".encode()):
                found.add(int(path.parent.name))
    return found


@contextlib.contextmanager
def namespace_of(pid: int) -> Iterator[str | None]:
    """Its user namespace, whose name is no other's meanwhile."""
    with Path(f"/proc/{pid}/ns/user").open():
        yield users(pid)


async def test_a_command_runs_in_gvisors_kernel_and_not_in_this_machines(box: Boxes) -> None:
    async with box() as sandbox:
        done = await shell(
            sandbox, "uname -r; dmesg; id -u; cat data/a.txt; cat; echo to > /dev/stderr", stdin=b"given"
        )
    said = done.stdout.decode()
    assert done.code == 0, done.stderr
    assert platform.release() not in said
    assert "Starting gVisor" in said
    assert said.endswith("1000\nalphagiven")
    assert done.stderr == b"to\n"
    assert (sandbox.facts["oci_runtime"], sandbox.facts["isolation"]) == ("runsc", "gvisor")


CALLS = """
import socket
for address in (("127.0.0.1", 8089), ("127.0.0.1", {port}), ("10.0.2.2", 80), ("192.0.2.1", 80)):
    try:
        with socket.create_connection(address, timeout=5) as c:
            print(c.recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
print([name for _, name in socket.if_nameindex()])
"""


async def test_the_proxy_alone_can_be_reached(box: Boxes, place: tuple[OpenPodman, Path]) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the proxy")
        writer.close()

    path = place[1] / "proxy"
    server = await asyncio.start_unix_server(proxy, path)
    path.chmod(0o666)
    other = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    async with server, other, box(socket=path) as sandbox:
        done = await ran(sandbox, "/usr/bin/python3", "-c", CALLS.format(port=port))
    assert done.stdout.decode().splitlines() == [
        "the proxy",
        "ConnectionRefusedError",
        "OSError",
        "OSError",
        "['lo']",
    ], done.stderr


async def test_files_are_put_kept_and_reset_across_lives(box: Boxes) -> None:
    async with box() as sandbox:
        assert (await shell(sandbox, "echo mine > b.txt")).code == 0
        kept = await sandbox.snapshot()
        await sandbox.put({"b.txt": b"theirs"})
        assert (await shell(sandbox, "cat b.txt; rm b.txt data/a.txt; sleep 99 &")).stdout == b"theirs"
        await sandbox.stop()
        await sandbox.reset(kept)
        assert (await shell(sandbox, "cat b.txt data/a.txt")).stdout == b"mine\nalpha"
        assert await sandbox.get("b.txt") == b"mine\n"


async def test_nothing_of_a_life_is_left_when_it_has_ended(box: Boxes) -> None:
    before = gvisors()
    async with box() as sandbox, contextlib.AsyncExitStack() as stack:
        await shell(sandbox, "true")
        (kernel,) = gvisors("sandbox") - before
        namespace = stack.enter_context(namespace_of(kernel))
        assert len(gvisors() - before) == 2
        done = await shell(sandbox, "setsid sleep 99 & setsid sh -c 'while :; do :; done' & sleep 99", timeout_s=1)
        assert done.timed_out
        assert [path.name for path in Path("/proc").glob("[0-9]*") if users(int(path.name)) == namespace] == []
        assert gvisors() <= before
        assert (await shell(sandbox, "echo again")).stdout == b"again\n"
        await sandbox.stop()
        assert gvisors() <= before


async def test_many_begin_and_end_beside_each_other(box: Boxes) -> None:
    async def once(rollout_id: str) -> None:
        async with box(rollout_id) as sandbox:
            for _ in range(3):
                assert (await shell(sandbox, "echo here")).stdout == b"here\n"
                await sandbox.stop()

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(once(f"r{number}"))


async def test_limits_hold_for_all_processes_that_a_sandbox_is_made_of(box: Boxes) -> None:
    async with box() as sandbox:
        assert sorted(sandbox.facts["limits"]) == sorted(
            ["disk_mb", *({"memory": "memory_mb", "cpu": "cpus", "pids": "pids"}[name] for name in own_groups())]
        )
        eaten = await ran(sandbox, "/usr/bin/python3", "-c", "x = bytearray(600 << 20)")
        assert eaten.code == -9
        assert b"out of memory" in eaten.stderr
        forked = await shell(sandbox, "for i in $(seq 300); do sleep 9 & done; wait", timeout_s=60)
        assert b"out of processes" in forked.stderr
        written = await shell(sandbox, "head -c 100000000 /dev/zero > big; wc -c < big")
        assert written.stdout == b"52428800\n"


async def test_a_sandbox_of_runc_is_like_one_of_crun(task: Task, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    owner = Owner(run_id="run", rollout_id="r1", root=tmp_path / "boxes", proxy_socket=None, proxy_port=8089)
    async with replace(OPTIONS, oci_runtime="runc").sandbox(task, Needs(), owner) as sandbox:
        done = await shell(sandbox, "uname -r; cat data/a.txt")
        assert done.stdout.decode() == f"{platform.release()}\nalpha"
        assert (sandbox.facts["oci_runtime"], sandbox.facts["isolation"]) == ("runc", "container")
        await sandbox.stop()
        assert (await shell(sandbox, "echo again")).stdout == b"again\n"


async def test_one_that_is_not_there_is_refused_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names: list[OciRuntime] = ["crun", "runc", "runsc"]
    assert [refused(name) for name in names] == [None, None, None]
    monkeypatch.setattr(oci.shutil, "which", lambda _: None)
    assert refused("runsc") == "runtime.oci_runtime=runsc: runsc is not in PATH: apt-get install runsc (gVisor)"
    with pytest.raises(RuntimeFault, match="runsc is not in PATH"):
        async with OPTIONS.open([tmp_path], []):
            pass


@pytest.mark.parametrize("name", ["kata", "krun"])
async def test_virtual_machines_are_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(ConfigError) as told:
        check(["runtime=podman", f"runtime.oci_runtime={name}"])
    assert f"runtime=podman  runtime.oci_runtime={name}" in str(told.value)
    assert "none can be passed into a virtual machine" in str(told.value)
    assert "is not in PATH: it needs virtual machines" in str(told.value)
