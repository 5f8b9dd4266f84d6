"""A host that is reached with a real ssh, through a real sshd on this machine's loopback."""

import asyncio
import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.records import Command, Needs, Owner, Task
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.runtime.hosts import Hosts

BUBBLEWRAP = Bubblewrap(file_bytes=1_000_000, memory_mb=512, cpus=1.0, pids=64, disk_mb=64, require_limits=False)
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
AcceptEnv PYTHONPATH
"""
CLIENT = """
Host node1
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {folder}/user
    UserKnownHostsFile {folder}/known
    StrictHostKeyChecking accept-new
    SendEnv PYTHONPATH
Host node2
    HostName 127.0.0.1
    Port 1
"""


def free_port() -> int:
    """For a server that cannot be told to take any and say which."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """What makes ssh know `node1`, a live sshd, and `node2`, where nothing listens."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    names = {"port": free_port(), "folder": tmp_path, "user": getpass.getuser()}
    (tmp_path / "sshd").write_text(SERVER.format(**names))
    (tmp_path / "ssh").write_text(CLIENT.format(**names))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it; the system's own start makes it
    argv = [SSHD, "-D", "-e", "-f", str(tmp_path / "sshd")]
    with (tmp_path / "sshd.log").open("wb") as log, subprocess.Popen(argv, stderr=log) as server:
        deadline = time.monotonic() + 60
        while not listens(names["port"]):
            assert server.poll() is None, (tmp_path / "sshd.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield tmp_path / "ssh"
        server.kill()


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def reached(config: Path, *hosts: str) -> Hosts:
    ssh = ("ssh", "-F", str(config))
    return Hosts(
        each=BUBBLEWRAP, hosts=hosts, sandboxes=1, placing="spread", ssh=ssh, python=sys.executable, start_s=120.0
    )


@pytest.fixture
def proxied(tmp_path: Path) -> Path:
    return tmp_path / "proxy"


async def test_a_sandbox_is_used_and_reaches_the_proxy_over_ssh(
    config: Path, task: Task, owner: Callable[..., Owner], proxied: Path
) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    script = "import socket; s = socket.create_connection(('127.0.0.1', 8089)); s.sendall(b'hi\\n'); print(s.recv(9))"
    server = await asyncio.start_unix_server(shout, str(proxied))
    async with server, reached(config, "node1").open([], []) as opened:
        for rollout in ("r1", "r2"):
            async with opened.sandbox(task, Needs(), owner(rollout, proxied)) as sandbox:
                done = await sandbox.run(Command(argv=(sandbox.python, "-c", script)))
                assert done.stdout == b"b'HI\\n'\n", done.stderr
                assert sandbox.facts["host"] == "node1"
                await sandbox.put({"big": bytes(200_000)})
                assert await sandbox.get("big") == bytes(200_000)


async def test_a_host_that_ssh_does_not_reach_is_left_out_and_one_alone_is_refused_with_what_ssh_says(
    config: Path, task: Task, owner: Callable[..., Owner], caplog: pytest.LogCaptureFixture
) -> None:
    hosts = reached(config, "node1", "node2")
    async with hosts.open([], []) as opened, opened.sandbox(task, Needs(), owner()) as sandbox:
        assert sandbox.facts["host"] == "node1"
    assert "host node2 is drained: host node2 does not serve sandboxes" in caplog.text
    with pytest.raises(RuntimeFault, match=r"node2: .*Connection refused"):
        async with reached(config, "node2").open([], []):
            pass
