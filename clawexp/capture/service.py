"""A harness's HTTP request -> the reply: who asks, in which dialect, and whether anything is to be
sampled."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from clawexp.capture.caller import Caller, final_answer
from clawexp.capture.conversation import Conversation
from clawexp.capture.dialects.dialect import Asked, Counting, Dialect
from clawexp.capture.dialects.table import DIALECTS
from clawexp.capture.exchange import Exchange
from clawexp.capture.journal import CallJournal
from clawexp.capture.message import Refused, Reply, Request
from clawexp.capture.open_rollout import Opening, OpenRollout
from clawexp.capture.raw import RawLog, raw_path
from clawexp.capture.syncer import Syncer
from clawexp.errors import CaptureError, EngineError, JournalError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LONG_TEXT = 4096
"""Characters that take some milliseconds to encode."""
LONGEST_BODY = 32 * 2**20
"""Bytes. The longest context in tokens is far shorter; what is longer would only keep others waiting."""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One HTTP request."""

    asked: Asked
    body: bytes
    key: str | None
    """Of the rollout, where the way that the request came by tells it; None: the dialect's credential does."""
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

    def __init__(self, caller: Caller, max_calls: int, fsync: bool, keep_raw: bool) -> None:
        self._caller = caller
        self._max_calls = max_calls
        self._syncer = Syncer() if fsync else None
        self._keep_raw = keep_raw
        self.rollouts: dict[str, OpenRollout] = {}
        """By key."""
        self._keys: dict[str, str] = {}
        """By id of the rollout."""

    async def open(self, opening: Opening) -> None:
        """Serve a rollout from now on. Raises CaptureError, JournalError."""
        if opening.rollout_id in self._keys or opening.key in self._keys.values():
            raise CaptureError(f"rollout {opening.rollout_id} is open already, or shares its key with one that is")
        self._keys[opening.rollout_id] = opening.key
        try:
            # A new file's name takes the disk some time, in which others are served.
            journal = await asyncio.to_thread(CallJournal, opening.journal, syncer=self._syncer)
            raw = RawLog(raw_path(opening.journal), opening.key) if self._keep_raw else None
        except JournalError:
            del self._keys[opening.rollout_id]
            raise
        conversation = Conversation(self._caller.rendering)
        self.rollouts[opening.key] = OpenRollout(opening=opening, conversation=conversation, journal=journal, raw=raw)

    async def close(self, rollout_id: str) -> Mapping[str, Any]:
        """Refuse the rollout's key from now on, wait for its calls in flight, and sum up. Raises
        CaptureError."""
        key = self._keys.get(rollout_id)
        if key not in self.rollouts:
            raise CaptureError(f"rollout {rollout_id} is not open")
        del self._keys[rollout_id]
        rollout = self.rollouts.pop(key)
        await rollout.idle.wait()
        rollout.close()
        return rollout.summary()

    async def serve(self, incoming: Incoming) -> Served:
        """The reply to anything at all, an error in the dialect's form included."""
        asked = incoming.asked
        found = next((each for each in DIALECTS if each.serves(asked)), None)
        dialect = found or DIALECTS[-1]
        unserved = _unserved(asked, incoming.body, known=found is not None)
        if unserved is not None:
            return Served(reply=dialect.refuse(unserved, stream=False))
        rollout = self.rollouts.get(dialect.key(asked) if incoming.key is None else incoming.key)
        if rollout is None:
            return Served(reply=dialect.refuse(Refused("unknown_key", "Incorrect API key provided."), stream=False))
        request: Request | None = None
        try:
            with rollout.serving(), _faults_marked(rollout):
                about = dialect.about(asked, self._caller.model)
                if about is not None:
                    return Served(reply=about)
                request = self._caller.rules.request(dialect.read(asked, incoming.body))
                served = await self._serve(rollout, dialect, incoming, request)
                if rollout.raw is not None and served.exchange is not None:
                    await rollout.raw.keep(served.exchange.call_id, asked.path, incoming.body, served.reply)
                return served
        except Refused as refused:
            return Served(reply=dialect.refuse(refused, stream=request is not None and request.stream))

    async def _serve(self, rollout: OpenRollout, dialect: Dialect, incoming: Incoming, request: Request) -> Served:
        model = self._caller.model
        if isinstance(dialect, Counting) and dialect.counts(incoming.asked):
            count = await _aside(len(incoming.body), rollout.conversation.count, request)
            return Served(reply=dialect.count(count))
        if request.stream:
            incoming.may_ping(dialect.ping)
        body = hashlib.sha256(incoming.body).digest()
        again = rollout.conversation.repeated(body, dialect.retried(incoming.asked))
        if again is not None and again.answer is not None:
            rollout.counts["replayed"] += 1
            return Served(reply=dialect.answer(request, again.answer, model), exchange=again)
        if rollout.conversation.size >= self._max_calls:
            rollout.counts["final_answers"] += 1
            return Served(reply=dialect.answer(request, final_answer(), model))
        exchange = rollout.conversation.arrive(request, body, rollout.take_position())
        try:
            conversation = rollout.conversation
            if not await _aside(conversation.added_size(request, exchange), conversation.extend, exchange, request):
                await _aside(len(incoming.body), conversation.render, exchange, request)
            answer = await self._caller.call(rollout, dialect.name, request, exchange, incoming.until_gone)
        finally:
            if exchange.answer is None:
                rollout.conversation.leave(exchange)
        return Served(reply=dialect.answer(request, answer, model), exchange=exchange)


async def _aside(size: int, work: Callable[..., Result], *args: Any) -> Result:
    """Do work that encodes `size` characters: many of them in a thread, so that others are served meanwhile."""
    return await asyncio.to_thread(work, *args) if size > LONG_TEXT else work(*args)


def _unserved(asked: Asked, body: bytes, *, known: bool) -> Refused | None:
    """Why a request is not even looked at."""
    if asked.headers.get("upgrade", "").lower() == "websocket":
        return Refused("no_websocket", "Websockets are not served; send each request by itself.")
    if not known:
        return Refused("not_found", f"Unknown request URL: {asked.method} {asked.path}.")
    if len(body) > LONGEST_BODY:
        return Refused("too_large", f"The body has {len(body)} bytes; at most {LONGEST_BODY} are read.")
    return None


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
    except RecursionError as error:
        expected = True
        rollout.counts["refused"] += 1
        raise Refused("invalid_request", "The body of the request is nested too deeply.") from error
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
