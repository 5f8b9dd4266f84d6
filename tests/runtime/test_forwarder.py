import asyncio
import socket
import sys
from pathlib import Path

import pytest

from clawexp.records import Command, Finished
from clawexp.runtime import forwarder
from clawexp.runtime.process import supervise

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


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def forwarded(port: int, path: Path, *argv: str) -> Finished:
    program = (sys.executable, "-I", "-S", forwarder.__file__, str(port), str(path))
    command = Command(argv=argv, env={"PATH": "/usr/bin:/bin"}, timeout_s=30)
    return await supervise((*program, *argv), command, cwd=None)


async def test_every_byte_goes_both_ways_and_so_does_the_end(tmp_path: Path, port: int):
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(echo, str(tmp_path / "s")):
        done = await forwarded(port, tmp_path / "s", sys.executable, "-c", CLIENT, str(port))
    assert done.stdout == b"3000000\n", done.stderr


async def test_a_proxy_that_is_gone_closes_the_connection(tmp_path: Path, port: int):
    client = "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1))"
    done = await forwarded(port, tmp_path / "none", sys.executable, "-c", client, str(port))
    assert (done.code, done.stdout) == (0, b"b''\n")
    assert b"forwarder: " in done.stderr


async def test_it_ends_as_its_command_does(tmp_path: Path, port: int):
    assert (await forwarded(port, tmp_path, "sh", "-c", "exit 9")).code == 9
    assert (await forwarded(port, tmp_path, "sh", "-c", "kill -9 $$")).code == 137
    assert (await forwarded(port, tmp_path, "/no/such/program")).code == 127
