"""A harness's HTTP request -> the reply: who asks, in which dialect, and whether anything is to be
sampled."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from clawexp.capture.caller import Caller, final_answer
from clawexp.capture.conversation import Conversation
from clawexp.capture.dialects.dialect import Counting, Dialect
from clawexp.capture.dialects.table import DIALECTS
from clawexp.capture.exchange import Exchange
from clawexp.capture.journal import CallJournal
from clawexp.capture.message import Refused, Reply
from clawexp.capture.open_rollout import Opening, OpenRollout
from clawexp.errors import CaptureError, EngineError, JournalError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One HTTP request."""

    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """Looked up without regard to case."""
    body: bytes
    until_gone: AbstractContextManager[None]
    """Inside it, the request is cancelled when its client leaves; outside it runs to its end."""
    may_ping: Callable[[bytes], None]
    """Told what the client may be sent while it waits, once it is known to wait for a stream."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A reply, and the exchange that it tells of, where there is one."""

    reply: Reply
    exchange: Exchange | None = None


class CaptureService:
    """All open rollouts of one process. Requests of one rollout are served concurrently."""

    def __init__(self, caller: Caller, max_calls: int, fsync: bool) -> None:
        self._caller = caller
        self._max_calls = max_calls
        self._fsync = fsync
        self.rollouts: dict[str, OpenRollout] = {}
        """By key."""

    def open(self, opening: Opening) -> None:
        """Serve a rollout from now on. Raises CaptureError, JournalError."""
        known = {rollout.opening.rollout_id for rollout in self.rollouts.values()}
        if opening.key in self.rollouts or opening.rollout_id in known:
            raise CaptureError(f"rollout {opening.rollout_id} is open already, or shares its key with one that is")
        journal = CallJournal(opening.journal, fsync=self._fsync)
        conversation = Conversation(self._caller.rendering)
        self.rollouts[opening.key] = OpenRollout(opening=opening, conversation=conversation, journal=journal)

    async def close(self, rollout_id: str) -> Mapping[str, Any]:
        """Refuse the rollout's key from now on, wait for its calls in flight, and sum up. Raises
        CaptureError."""
        keys = [key for key, rollout in self.rollouts.items() if rollout.opening.rollout_id == rollout_id]
        if not keys:
            raise CaptureError(f"rollout {rollout_id} is not open")
        rollout = self.rollouts.pop(keys[0])
        await rollout.idle.wait()
        rollout.journal.close()
        return rollout.summary()

    async def serve(self, incoming: Incoming) -> Served:
        """The reply to anything at all, an error in the dialect's form included."""
        asked = (incoming.method, incoming.path, incoming.headers)
        dialect = next((each for each in DIALECTS if each.serves(*asked)), None)
        if dialect is None:
            refused = Refused("not_found", f"Unknown request URL: {incoming.method} {incoming.path}.")
            return Served(reply=DIALECTS[-1].refuse(refused))
        rollout = self.rollouts.get(dialect.key(incoming.headers))
        if rollout is None:
            return Served(reply=dialect.refuse(Refused("unknown_key", "Incorrect API key provided.")))
        try:
            with rollout.serving(), _faults_marked(rollout):
                return await self._serve(rollout, dialect, incoming)
        except Refused as refused:
            return Served(reply=dialect.refuse(refused))

    async def _serve(self, rollout: OpenRollout, dialect: Dialect, incoming: Incoming) -> Served:
        model = self._caller.model
        about = dialect.about(incoming.method, incoming.path, model)
        if about is not None:
            return Served(reply=about)
        request = dialect.read(incoming.headers, incoming.body)
        if isinstance(dialect, Counting) and dialect.counts(incoming.method, incoming.path):
            return Served(reply=dialect.count(rollout.conversation.count(request)))
        if request.stream:
            incoming.may_ping(dialect.ping)
        body = hashlib.sha256(incoming.body).digest()
        again = rollout.conversation.repeated(body, dialect.retried(incoming.headers))
        if again is not None and again.answer is not None:
            rollout.counts["replayed"] += 1
            return Served(reply=dialect.answer(request, again.answer, model), exchange=again)
        if rollout.conversation.size >= self._max_calls:
            rollout.counts["final_answers"] += 1
            return Served(reply=dialect.answer(request, final_answer(), model))
        exchange = rollout.conversation.arrive(request, body, rollout.take_position())
        try:
            answer = await self._caller.call(rollout, dialect.name, request, exchange, incoming.until_gone)
        finally:
            if exchange.answer is None:
                rollout.conversation.leave(exchange)
        return Served(reply=dialect.answer(request, answer, model), exchange=exchange)


@contextmanager
def _faults_marked(rollout: OpenRollout) -> Iterator[None]:
    """Count how a request failed, and turn faults on our side into a refusal that tells the harness to come
    back.

    Whatever nobody expected is a capture fault too: the rollout must not pass for a sound one.
    """
    expected = False
    try:
        yield
        expected = True
    except asyncio.CancelledError:
        expected = True
        rollout.counts["left"] += 1
        raise
    except Refused:
        expected = True
        rollout.counts["refused"] += 1
        raise
    except EngineError as error:
        expected = True
        rollout.counts["engine_faults"] += 1
        log.error("rollout %s: %s", rollout.opening.rollout_id, error)
        raise Refused("unavailable", "The model is not available for the moment.") from error
    except (CaptureError, JournalError) as error:
        log.error("rollout %s: %s", rollout.opening.rollout_id, error)
        raise Refused("unavailable", "The model is not available for the moment.") from error
    finally:
        if not expected:
            rollout.counts["capture_faults"] += 1
