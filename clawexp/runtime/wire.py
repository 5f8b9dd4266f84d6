"""Messages between the driver and a host, on a stream: each is a JSON object and bytes, with their sizes before them.

Both ends are ours, and what is in between is a unix socket or ssh; what sandboxes say is never more than bytes here.
"""

import json
import struct
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clawexp.errors import ClawexpError, RuntimeFault

SIZES = struct.Struct("!IQ")
KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (RuntimeFault, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ValueError)
}
"""Errors that are on this side what they are on the other."""


@dataclass(frozen=True)
class Message:
    """`Message({"do": "get", "path": "out.txt"})`"""

    fields: Mapping[str, Any]
    data: bytes = b""


def send(writer: StreamWriter, message: Message) -> None:
    """Put it on its way; `drain` waits until it is under way."""
    fields = json.dumps(message.fields).encode()
    writer.write(SIZES.pack(len(fields), len(message.data)) + fields)
    writer.write(message.data)


async def receive(reader: StreamReader) -> Message:
    """The next one. Raises ConnectionError where the other end is gone."""
    try:
        of_fields, of_data = SIZES.unpack(await reader.readexactly(SIZES.size))
        return Message(json.loads(await reader.readexactly(of_fields)), await reader.readexactly(of_data))
    except IncompleteReadError as error:
        raise ConnectionResetError("the other end is gone") from error


def packed(files: Mapping[str, bytes]) -> tuple[list[tuple[str, int]], bytes]:
    """Names and sizes, and all contents in one."""
    return [(name, len(content)) for name, content in files.items()], b"".join(files.values())


def unpacked(index: Iterable[tuple[str, int]], data: bytes) -> dict[str, bytes]:
    """What was packed."""
    files, at = {}, 0
    for name, size in index:
        files[name] = data[at : at + size]
        at += size
    return files


def told(error: Exception) -> Message:
    """An error as a message."""
    return Message({"error": type(error).__name__, "text": str(error)})


def raise_told(host: str, message: Message) -> None:
    """Raise the error that a message tells of, if it does."""
    kind = message.fields.get("error")
    if kind is None:
        return
    text = message.fields["text"]
    known = KINDS.get(kind)
    if known is None:
        raise RuntimeFault(f"host {host}: {kind}: {text}")
    raise known(f"host {host}: {text}" if issubclass(known, ClawexpError) else text)
