"""The doors of the proxy: its TCP port, and a unix socket, whose streams it takes as if they came by TCP."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from mitmproxy.proxy.mode_servers import AsyncioServerInstance, ServerInstance

BACKLOG = 1024
"""Connections that may wait while the process is busy; a further one is tried again by its system, a second later."""
PEER = ("127.0.0.1", 0)


class NamedWriter:
    """A stream writer whose peer has an address: mitmproxy formats it, and a unix socket's peer has none."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return PEER if name in ("peername", "sockname") else self._writer.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def widen_backlog(instance: ServerInstance[Any]) -> None:
    """Let more connections wait at a TCP port that listens: mitmproxy leaves it at 100."""
    for server in cast("AsyncioServerInstance[Any]", instance)._servers:
        for listening in cast("asyncio.Server", server).sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(BACKLOG)


@asynccontextmanager
async def unix_socket(path: Path, instance: ServerInstance[Any]) -> AsyncIterator[None]:
    """Serve `instance` on `path` too. Everybody may connect; a key decides who is answered."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await instance.handle_stream(reader, cast("asyncio.StreamWriter", NamedWriter(writer)))

    server = await asyncio.start_unix_server(handle, path, backlog=BACKLOG)
    path.chmod(0o666)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
