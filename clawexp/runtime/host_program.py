"""The program that holds sandboxes on a host, for a driver on another: `python -m clawexp.runtime.host_program`.

It is told on stdin, in one line, which runtime it is to use, and says on stdout at which unix socket it serves. Every
connection there is one sandbox, which is removed when the connection ends, however that ends. With its stdin, all of it
ends: so nothing is left where the driver is killed or the network fails.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from hydra.utils import get_class

from clawexp.errors import ClawexpError, RuntimeFault, first_of
from clawexp.protocols import Openable, Runtime
from clawexp.records import Command, Image, Needs, Owner, Sandbox, Task, Verdict
from clawexp.runtime.reaper import sweep
from clawexp.runtime.reaping import reaping
from clawexp.runtime.wire import Message, packed, receive, send, told, unpacked
from clawexp.scratch import scratch_folder, scratch_root

PROXIES = "proxies"
"""Folder of the sockets that lead to the driver's proxy. Beside its path, a rollout's key is needed to use one."""
SETTINGS_BYTES = 1 << 30
"""They name every task that brings an image."""
BACKLOG = 1024
"""Connections that may wait to be taken."""


class Elsewhere:
    """The grader of a task whose sandbox is here: the driver has the real one."""

    async def grade(self, sandbox: Sandbox) -> Verdict:
        raise RuntimeFault(f"sandbox {sandbox.id} is graded by the driver, not by its host")


def task_of(fields: Mapping[str, Any], data: bytes = b"") -> Task:
    """As much of a task as a runtime looks at."""
    image = fields["image"]
    return Task(
        id=fields["id"],
        instruction="",
        files=unpacked(fields["files"], data),
        grader=Elsewhere(),
        split="train",
        workspace=fields["workspace"],
        folders=tuple(fields["folders"]),
        image=image and Image(context=Path(image["context"]), required=image["required"]),
    )


class Visit:
    """One connection: the sandbox that is asked for, and then the orders for it, one at a time."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, runtime: Runtime, root: Path) -> None:
        self._reader, self._writer, self._runtime, self._root = reader, writer, runtime, root

    async def serve(self) -> None:
        """Until the driver ends it or is gone; then the sandbox is gone, too."""
        with contextlib.closing(self._writer), contextlib.suppress(ConnectionError):
            try:
                asked = await receive(self._reader)
                async with self._made(asked) as sandbox:
                    about = {name: getattr(sandbox, name) for name in ("id", "workspace", "home", "python")}
                    await self._say(Message({**about, "facts": sandbox.facts}))
                    await self._obey(sandbox)
                await self._say(Message({"ended": True}))
            except* ConnectionError:
                raise
            except* (ClawexpError, OSError) as group:
                await self._say(told(first_of(group)))

    def _made(self, asked: Message) -> contextlib.AbstractAsyncContextManager[Sandbox]:
        needs = Needs(**asked.fields["needs"])
        given = asked.fields["owner"]
        proxy = given["proxy_socket"]
        if proxy and Path(proxy).parent == self._root.parent / PROXIES:  # made by ssh, for this user alone
            Path(proxy).chmod(0o666)
        owner = Owner(**{**given, "root": self._root, "proxy_socket": proxy and Path(proxy)})
        return self._runtime.sandbox(task_of(asked.fields["task"], asked.data), needs, owner)

    async def _say(self, message: Message) -> None:
        send(self._writer, message)
        await self._writer.drain()

    async def _obey(self, sandbox: Sandbox) -> None:
        """Carry out orders until the one to end. `cancel`, or the driver's end, cancels the one under way."""
        coming = asyncio.ensure_future(receive(self._reader))
        try:
            while (order := await coming).fields["do"] != "end":
                coming = asyncio.ensure_future(receive(self._reader))
                work = asyncio.ensure_future(self._carried_out(sandbox, order))
                try:
                    await asyncio.wait({work, coming}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not work.done():
                        work.cancel()
                        await asyncio.wait({work})
                if work.cancelled():
                    await coming  # the order to cancel, or the news that nobody is there
                    coming = asyncio.ensure_future(receive(self._reader))
                await self._say(Message({"cancelled": True}) if work.cancelled() else work.result())
        finally:
            coming.cancel()

    async def _carried_out(self, sandbox: Sandbox, order: Message) -> Message:
        try:
            return await self._answered(sandbox, order)
        except (ClawexpError, OSError, ValueError) as error:
            return told(error)

    async def _answered(self, sandbox: Sandbox, order: Message) -> Message:
        fields = order.fields
        match fields["do"]:
            case "run":
                return await self._run(sandbox, order)
            case "put":
                await sandbox.put(unpacked(fields["files"], order.data))
            case "get":
                return Message({}, await sandbox.get(fields["path"]))
            case "files":
                return Message({"files": await sandbox.files()})
            case "stop":
                await sandbox.stop()
            case "snapshot":
                return Message({"name": await sandbox.snapshot()})
            case "reset":
                await sandbox.reset(fields["to"])
            case "cancel":  # what it was meant for is done
                return Message({"cancelled": True})
            case other:
                raise RuntimeFault(f"no order is called {other!r}: driver and host have different versions of clawexp")
        return Message({})

    async def _run(self, sandbox: Sandbox, order: Message) -> Message:
        def hear(stream: str, data: bytes) -> None:
            send(self._writer, Message({"heard": stream}, data))

        given = {**order.fields["command"], "argv": tuple(order.fields["command"]["argv"]), "stdin": order.data}
        finished = await sandbox.run(Command(**given), hear if order.fields["heard"] else None)
        index, data = packed({"stdout": finished.stdout, "stderr": finished.stderr})
        rest = {"code": finished.code, "wall_s": finished.wall_s, "timed_out": finished.timed_out}
        return Message({"finished": rest, "streams": index}, data)


@contextlib.asynccontextmanager
async def opened(settings: Mapping[str, Any], folders: list[Path]) -> AsyncIterator[Runtime]:
    """The runtime that the driver chose."""
    runtime = get_class(settings["target"])(**settings["fields"])
    if isinstance(runtime, Openable):
        async with runtime.open(folders, [task_of(place) for place in settings["places"]]) as live:
            yield live
    else:
        yield runtime


async def serve() -> None:
    """Until stdin ends."""
    loop = asyncio.get_running_loop()
    stdin = StreamReader(limit=SETTINGS_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    settings = json.loads(await stdin.readline())
    sweep(scratch_root())
    with scratch_folder("host-") as root, socket.socket(socket.AF_UNIX) as listener:
        root.chmod(0o711)
        (root / PROXIES).mkdir(mode=0o711)
        listener.bind(str(root / "driver"))
        (root / "driver").chmod(0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        (boxes := root / "boxes").mkdir(mode=0o711)
        async with reaping(), opened(settings, [boxes, root / PROXIES, *map(Path, settings["folders"])]) as runtime:
            say({"socket": str(root / "driver"), "proxies": str(root / PROXIES)})
            async with asyncio.TaskGroup() as group:
                accepting = group.create_task(accept(listener, runtime, boxes))
                await stdin.read()
                accepting.cancel()


async def accept(listener: socket.socket, runtime: Runtime, root: Path) -> None:
    """Serve connections as they come; all of them end with this."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as visits:
        while True:
            connection, _ = await loop.sock_accept(listener)
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            visits.create_task(Visit(reader, writer, runtime, root).serve())


def say(facts: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.umask(0o022)
    try:
        asyncio.run(serve())
    except (ClawexpError, OSError) as error:
        say({"error": type(error).__name__, "text": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
