"""A second door for the proxy: a unix socket, whose streams the reverse-mode server takes as if they came by
TCP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from mitmproxy.proxy.mode_servers import ServerInstance

BACKLOG = 1024
PEER = ("127.0.0.1", 0)


class NamedWriter:
    """A stream writer whose peer has an address: mitmproxy formats it, and a unix socket's peer has none."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return PEER if name in ("peername", "sockname") else self._writer.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


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
