"""A sandbox on another host, over one connection to the program there."""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed
from clawexp.records import Command, Finished, Heard, Needs, Owner, Task
from clawexp.runtime.process import to_the_end
from clawexp.runtime.wire import Message, packed, raise_told, receive, send, unpacked

CANCEL_S = 30.0
"""How long a host may take to end what was cancelled, and to remove a sandbox."""


def place_fields(place: Placed) -> dict[str, Any]:
    """As much of a task as a runtime looks at, but for its files."""
    image = place.image
    return {
        "id": place.id,
        "workspace": place.workspace,
        "folders": place.folders,
        "image": image and {"context": str(image.context), "required": image.required},
        "files": [],
    }


class FarSandbox:
    """Made by `far_sandbox` alone. Its orders are carried out one at a time."""

    def __init__(self, host: str, reader: StreamReader, writer: StreamWriter, about: Mapping[str, Any]) -> None:
        self.id: str = about["id"]
        self.workspace: str = about["workspace"]
        self.home: str = about["home"]
        self.python: str = about["python"]
        self.facts: Mapping[str, Any] = {**about["facts"], "host": host}
        self._host, self._reader, self._writer = host, reader, writer
        self._turn = asyncio.Lock()

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        fields = asdict(replace(command, stdin=b"", env=dict(command.env)))
        del fields["stdin"]
        order = Message({"do": "run", "command": fields, "heard": heard is not None}, command.stdin)
        done = await self._answer(order, heard)
        streams = unpacked(done.fields["streams"], done.data)
        return Finished(**done.fields["finished"], stdout=streams["stdout"], stderr=streams["stderr"])

    async def stop(self) -> None:
        await self._answer(Message({"do": "stop"}))

    async def snapshot(self) -> str:
        return (await self._answer(Message({"do": "snapshot"}))).fields["name"]

    async def reset(self, to: str | None = None) -> None:
        await self._answer(Message({"do": "reset", "to": to}))

    async def put(self, files: Mapping[str, bytes]) -> None:
        index, data = packed(files)
        await self._answer(Message({"do": "put", "files": index}, data))

    async def get(self, path: str) -> bytes:
        return (await self._answer(Message({"do": "get", "path": path}))).data

    async def files(self) -> dict[str, int]:
        return (await self._answer(Message({"do": "files"}))).fields["files"]

    async def end(self) -> None:
        """Have it removed; return when it is."""
        await self._answer(Message({"do": "end"}))

    async def _answer(self, order: Message, heard: Heard | None = None) -> Message:
        async with self._turn, reaching(self._host):
            send(self._writer, order)
            try:
                await self._writer.drain()
                return await self._heard_to_the_end(heard)
            except asyncio.CancelledError:
                await to_the_end(self._cancelled())
                raise

    async def _heard_to_the_end(self, heard: Heard | None) -> Message:
        while True:
            message = await receive(self._reader)
            raise_told(self._host, message)
            if (stream := message.fields.get("heard")) is None:
                return message
            if heard is not None:
                heard(stream, message.data)

    async def _cancelled(self) -> None:
        """Have the host end what it does; where it does not, the connection ends, and the sandbox with it."""
        try:
            async with asyncio.timeout(CANCEL_S):
                send(self._writer, Message({"do": "cancel"}))
                while "cancelled" not in (await receive(self._reader)).fields:
                    pass
        except (TimeoutError, ConnectionError):
            self._writer.close()


@contextlib.asynccontextmanager
async def reaching(host: str) -> AsyncIterator[None]:
    """What breaks on the way is the host's fault, whatever it is."""
    try:
        yield
    except ConnectionError as error:
        raise RuntimeFault(f"host {host} is not reached any more: {error}") from error


@contextlib.asynccontextmanager
async def far_sandbox(
    host: str, reader: StreamReader, writer: StreamWriter, task: Task, needs: Needs, owner: Owner
) -> AsyncIterator[FarSandbox]:
    """A sandbox over a fresh connection, which ends with it. `owner`: as the host is to see it.

    Raises RuntimeFault where the host makes none, or is gone.
    """
    index, data = packed(task.files)
    fields = {
        "task": {**place_fields(task), "files": index},
        "needs": {**asdict(needs), "mounts": dict(needs.mounts)},
        "owner": {**asdict(owner), "root": None, "proxy_socket": owner.proxy_socket and str(owner.proxy_socket)},
    }
    with contextlib.closing(writer):
        async with reaching(host):
            send(writer, Message(fields, data))
            await writer.drain()
            about = await receive(reader)
            raise_told(host, about)
        sandbox = FarSandbox(host, reader, writer, about.fields)
        try:
            yield sandbox
        finally:
            await to_the_end(_ended(sandbox))


async def _ended(sandbox: FarSandbox) -> None:
    """Wait for its removal, within bounds: without its connection it is removed all the same."""
    with contextlib.suppress(TimeoutError, RuntimeFault):
        async with asyncio.timeout(CANCEL_S):
            await sandbox.end()
