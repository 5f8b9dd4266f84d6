"""The requests of a rollout and its answers as they went over the wire, kept for a person who wants to see them.

A file beside the rollout's journal, `ROLLOUT.raw`, in the journal's form: a checksummed record for each request that
was answered by a call. Bodies are compressed by zlib and written in base64; headers are not kept, since credentials
travel in them, and a body's mention of the rollout's key is blotted out.
"""

import asyncio
import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawexp.capture.journal import AppendLog, read_records
from clawexp.capture.message import Reply
from clawexp.errors import JournalError

BLOT = b"***"


@dataclass(frozen=True, kw_only=True)
class RawExchange:
    """One request and its answer."""

    call_id: str
    """Of the call whose answer it is; a request that is sent again gets that of the first."""
    path: str
    request: bytes
    """Its body, decompressed."""
    status: int
    reply: bytes
    """A stream from its first event to its last, without pings."""


class RawLog:
    """Open for one rollout."""

    def __init__(self, path: Path, key: str) -> None:
        """`key` is the rollout's. Raises JournalError."""
        # What is lost with the machine can be made again; what was sampled cannot, and the journal has that.
        self._log = AppendLog(path, fsync=False)
        self._key = key.encode()

    async def keep(self, call_id: str, path: str, request: bytes, reply: Reply) -> None:
        """Write one exchange; compressed beside the loop. Raises JournalError."""
        packed = await asyncio.to_thread(lambda: [self._packed(body) for body in (request, reply.body)])
        record = {"call": call_id, "path": path, "request": packed[0], "status": reply.status, "reply": packed[1]}
        self._log.append(record)

    def close(self) -> None:
        """Idempotent."""
        self._log.close()

    def _packed(self, body: bytes) -> str:
        return base64.b64encode(zlib.compress(body.replace(self._key, BLOT))).decode()


def raw_path(journal: Path) -> Path:
    """Beside the journal of a rollout's calls."""
    return journal.with_suffix(".raw")


def read_raw(path: Path) -> Iterator[RawExchange]:
    """What a rollout's file holds, in order, without a torn tail. Raises JournalError."""
    for number, record in enumerate(read_records(path)):
        try:
            yield _exchange(record)
        except (KeyError, ValueError, zlib.error) as error:
            raise JournalError(f"{path}, line {number + 1}: not a request and its answer: {error!r}") from error


def _exchange(record: dict[str, Any]) -> RawExchange:
    request, reply = (zlib.decompress(base64.b64decode(record[name])) for name in ("request", "reply"))
    return RawExchange(
        call_id=record["call"], path=record["path"], request=request, status=record["status"], reply=reply
    )
