"""Append-only logs that survive a kill at any moment, and the log of one rollout's calls.

A record is one line: the CRC-32 of the rest in hex, a space, compact JSON. The last line may be torn, which is
logged as a warning; any other fault is an error. A call's prompt is stored as (parent, shared, new ids), and of the
experts that its tokens went to only those that are new, so that a rollout of n calls costs O(tokens).
"""

import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from clawexp.array_text import array_of, text_of
from clawexp.capture.syncer import Syncer
from clawexp.errors import JournalError
from clawexp.quick_json import dumps, loads
from clawexp.records import Call, CallRecord, Edit, Span

log = logging.getLogger(__name__)

PLAIN = ("rollout_id", "call_id", "position", "dialect", "kind", "cause", "parent", "shared", "sampled_ids", "logprobs",
         "finish_reason", "verdict", "requested", "submitted", "rewritten", "started", "finished",
         "engine_s")  # fmt: skip


class AppendLog:
    """A log open for appending; a torn tail that an earlier process left is cut off first, and named."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        """With `fsync` a record survives the machine's end, without it the process's. Raises JournalError."""
        self._path = path
        self._fsync = fsync
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(f"{path} cannot be opened for appending: {error}") from error
        with self._closed_on_error():
            _cut_torn_tail(self._file, path)
            if fsync:
                _sync_folder(path.parent)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; durable at return. Raises JournalError, after which the log takes no more."""
        self.extend([record])

    def extend(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write several, durable together at return. Raises JournalError, after which the log takes no more."""
        with self._closed_on_error():
            for record in records:
                self._write(record)
            if self._fsync:
                os.fdatasync(self._file)

    def _write(self, record: Mapping[str, Any]) -> None:
        line = _line(record)
        written = os.write(self._file, line)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes fitted")

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise JournalError(f"{self._path}: a record could not be written: {error}") from error

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CallJournal(AppendLog):
    """The log of one rollout's calls. Written once: a file that already holds calls is refused."""

    def __init__(self, path: Path, *, syncer: Syncer | None) -> None:
        """Without a syncer a call survives the process's end, not the machine's. Raises JournalError."""
        self._syncing = 0
        super().__init__(path, fsync=syncer is not None)
        self._syncer = syncer
        if os.fstat(self._file).st_size:
            self.close()
            raise JournalError(
                f"{path} already holds calls of an earlier attempt; remove it or take another rollout id"
            )

    async def commit(self, call: CallRecord, new_ids: Sequence[int]) -> None:
        """Append a call whose prompt ends with `new_ids`; durable at return. Raises JournalError.

        Its parent must be in the log already: calls are written in the order in which this is called.

        A busy disk takes milliseconds to sync, so other rollouts go on meanwhile.
        """
        with self._closed_on_error():
            self._write(_written(call, new_ids))
            if self._syncer is not None:
                await self._synced(self._syncer, self._file)

    async def _synced(self, syncer: Syncer, file: int) -> None:
        self._syncing += 1
        try:
            await syncer.sync(file)
        finally:
            self._syncing -= 1
            if self._file < 0 and not self._syncing:
                os.close(file)

    def close(self) -> None:
        """Idempotent. A descriptor that is being synced is closed after that: its number might be another file's."""
        if self._syncing:
            self._file = -1
        else:
            super().close()


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a log, in order, without a torn tail, which is named. Raises JournalError with file and line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error}") from error
    lines = content.split(b"\n")
    last = len(lines) - 2 if not lines[-1] else len(lines) - 1
    for number, line in enumerate(lines[: last + 1]):
        record = _record(line) if number < len(lines) - 1 else None
        if record is not None:
            yield record
        elif number == last:
            _name_torn_tail(path, number + 1, len(line))
        else:
            raise JournalError(
                f"{path}, line {number + 1}: its checksum is wrong; the file was changed or the disk is bad"
            )


def read_calls(path: Path) -> list[Call]:
    """The calls of one rollout, in order of commit, with their whole prompts. Raises JournalError."""
    calls: list[Call] = []
    sequences: dict[str, tuple[int, ...]] = {}
    for number, record in enumerate(read_records(path)):
        try:
            call = _read(record, sequences)
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{path}, line {number + 1}: not the record of a call: {error!r}") from error
        sequences[call.call_id] = call.prompt_ids + call.sampled_ids
        calls.append(call)
    return calls


def _line(record: Mapping[str, Any]) -> bytes:
    body = dumps(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _record(line: bytes) -> dict[str, Any] | None:
    checksum, _, body = line.partition(b" ")
    return loads(body) if checksum == b"%08x" % zlib.crc32(body) else None


def _written(call: CallRecord, new_ids: Sequence[int]) -> dict[str, Any]:
    record = {name: getattr(call, name) for name in PLAIN}
    record["new_ids"] = new_ids
    record["spans"] = [(span.version, span.start, span.end) for span in call.spans]
    record["edits"] = [(edit.rule, edit.before, edit.after) for edit in call.edits]
    if call.experts is not None:
        record["experts"] = text_of(call.experts)
    return record


def _read(record: Mapping[str, Any], sequences: Mapping[str, tuple[int, ...]]) -> Call:
    begin = sequences[record["parent"]][: record["shared"]] if record["parent"] is not None else ()
    plain = {name: record[name] for name in PLAIN}
    plain["sampled_ids"] = tuple(record["sampled_ids"])
    plain["logprobs"] = tuple(record["logprobs"])
    return Call(
        **plain,
        prompt_ids=begin + tuple(record["new_ids"]),
        spans=tuple(Span(version=version, start=start, end=end) for version, start, end in record["spans"]),
        edits=tuple(Edit(rule=rule, before=before, after=after) for rule, before, after in record["edits"]),
        experts=array_of(record["experts"]) if "experts" in record else None,
    )


def _cut_torn_tail(file: int, path: Path) -> None:
    """Drop a last line that is not whole: a later record behind it would make it a fault in the middle."""
    begin = _begin_of_last_line(file)
    line = os.pread(file, os.fstat(file).st_size - begin, begin)
    if not line or (line.endswith(b"\n") and _record(line[:-1]) is not None):
        return
    _name_torn_tail(path, path.read_bytes()[:begin].count(b"\n") + 1, len(line))
    os.ftruncate(file, begin)


def _begin_of_last_line(file: int) -> int:
    """Offset in bytes; the newline that ends the file begins no line."""
    at = os.fstat(file).st_size - 1
    while at > 0:
        begin = max(0, at - 65536)
        newline = os.pread(file, at - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        at = begin
    return 0


def _name_torn_tail(path: Path, line: int, size: int) -> None:
    log.warning("%s, line %d: a record was cut off when it was written; its %d bytes are dropped", path, line, size)


def _sync_folder(folder: Path) -> None:
    """A new file's name is durable only once its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
