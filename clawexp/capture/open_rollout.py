"""A rollout while the boundary serves it: its conversation, its journal, and what is counted until it is closed."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawexp.capture.conversation import Conversation
from clawexp.capture.journal import CallJournal
from clawexp.capture.message import Reply
from clawexp.capture.raw import RawLog
from clawexp.errors import JournalError
from clawexp.records import CallRecord
from clawexp.rule import NOTED

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What the driver says of a rollout when it opens it."""

    rollout_id: str
    key: str
    seed: int
    temperature: float
    journal: Path


@dataclass(slots=True, kw_only=True, eq=False)
class OpenRollout:
    """Mutable state of one rollout; only the event loop touches it."""

    opening: Opening
    conversation: Conversation
    journal: CallJournal
    raw: RawLog | None
    """None where the experiment does not ask for it."""
    positions: int = 0
    """Given out so far, one to every request that is to be sampled."""
    committed: int = 0
    in_flight: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """Of committed calls."""
    rules: Counter[str] = field(default_factory=Counter)
    """Edits of committed calls, by the rule that made them."""
    counts: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)
    """Hosts that it tried to reach and may not, as `host:port`."""
    state: bytes = b""
    """Digest of what it may have changed at allowed hosts."""
    last: CallRecord | None = None
    """The committed call of the highest position."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Hold the rollout open for one request."""
        self.in_flight += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    def take_position(self) -> int:
        position, self.positions = self.positions, self.positions + 1
        return position

    async def commit(self, call: CallRecord, new_ids: Sequence[int]) -> None:
        """Write the call; durable at return. Raises JournalError."""
        await self.journal.commit(call, new_ids)
        self.committed += 1
        self.causes[call.cause] += 1
        self.rules.update(edit.rule.removeprefix(NOTED) for edit in call.edits if edit.rule.startswith(NOTED))
        if self.last is None or call.position > self.last.position:
            self.last = call

    async def keep_raw(self, call_id: str, path: str, request: bytes, reply: Reply) -> None:
        """Where the experiment asks for it. No answer is withheld for what is kept to be looked at."""
        if self.raw is None:
            return
        try:
            await self.raw.keep(call_id, path, request, reply)
        except JournalError as error:
            self.counts["raw_lost"] += 1
            log.error("rollout %s: %s; nothing more of it is kept raw", self.opening.rollout_id, error)
            self.raw = None

    def close(self) -> None:
        """Idempotent."""
        self.journal.close()
        if self.raw is not None:
            self.raw.close()

    def summary(self) -> Mapping[str, Any]:
        """Counts for the driver. `{"calls": 7, "forks": {"reminder": 1}, "capture_faults": 0, ...}`"""
        names = (
            *("capture_faults", "engine_faults", "final_answers", "replayed", "refused", "left"),
            *("forwarded", "cache_hits", "cache_misses", "raw_lost"),
        )
        return {
            "calls": self.committed,
            "forks": {cause: n for cause, n in self.causes.items() if cause not in ("root", "continue")},
            "rules": dict(self.rules),
            **{name: self.counts[name] for name in names},
            "blocked": dict(self.blocked),
            "last_verdict": self.last.verdict if self.last else None,
        }
