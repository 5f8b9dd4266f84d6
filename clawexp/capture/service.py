"""A harness's HTTP request -> the reply: who asks, in which dialect, and whether anything is to be sampled."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from clawexp.capture.caller import Caller, final_answer
from clawexp.capture.conversation import Conversation
from clawexp.capture.decoding import decoded, too_long
from clawexp.capture.dialects.dialect import Asked, Dialect
from clawexp.capture.dialects.table import COUNTING, dialect_of
from clawexp.capture.exchange import Exchange
from clawexp.capture.journal import CallJournal
from clawexp.capture.message import Refused, Reply, Request, TooLong
from clawexp.capture.open_rollout import Opening, OpenRollout
from clawexp.capture.raw import RawLog, raw_path
from clawexp.capture.syncer import Syncer
from clawexp.errors import CaptureError, ClawexpError, EngineError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LONG_TEXT = 4096
"""Characters that take some milliseconds to encode."""
LARGE_BODY = 128 * 2**10
"""Bytes that take a millisecond to read, or several."""
LEAST_TOKENS = 4
"""Of a message, a tool or a call of one: what marks where it begins and ends."""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One HTTP request."""

    asked: Asked
    body: bytes
    """As it was sent, compressed or not."""
    dropped: int
    """Bytes of a body that was not kept, since it was too long or its sender unknown."""
    key: str | None
    """Of the rollout, where the way that the request came by tells it; None: the dialect's credential does."""
    until_gone: AbstractContextManager[None]
    """Inside it, the request is cancelled when its client leaves; outside it runs to its end."""
    may_ping: Callable[[bytes], None]
    """Told what the client may be sent while it waits, once it is known to wait for a stream."""


@dataclass(frozen=True, kw_only=True)
class Understood:
    """A request that was read."""

    body: bytes
    """Decompressed."""
    digest: bytes
    """Of the body."""
    request: Request
    least: int
    """Tokens that it takes if all of its texts are empty."""


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
        with ExitStack() as stack:
            stack.callback(self._keys.pop, opening.rollout_id)
            # A new file's name takes the disk some time, in which others are served.
            journal = await asyncio.to_thread(CallJournal, opening.journal, syncer=self._syncer)
            stack.callback(journal.close)
            raw = RawLog(raw_path(opening.journal), opening.key) if self._keep_raw else None
            stack.pop_all()
        conversation = Conversation(self._caller.rendering)
        self.rollouts[opening.key] = OpenRollout(opening=opening, conversation=conversation, journal=journal, raw=raw)

    async def close(self, rollout_id: str) -> Mapping[str, Any]:
        """Refuse the rollout's key from now on, wait for its calls in flight, and sum up. Raises CaptureError."""
        key = self._keys.get(rollout_id)
        if key not in self.rollouts:
            raise CaptureError(f"rollout {rollout_id} is not open")
        del self._keys[rollout_id]
        rollout = self.rollouts.pop(key)
        await rollout.idle.wait()
        rollout.close()
        return rollout.summary()

    def knows(self, asked: Asked, key: str | None) -> bool:
        """Whether an open rollout asks. `key` is as in `Incoming`."""
        return (dialect_of(asked)[0].key(asked) if key is None else key) in self.rollouts

    async def serve(self, incoming: Incoming) -> Served:
        """The reply to anything at all, an error in the dialect's form included."""
        asked = incoming.asked
        dialect, served = dialect_of(asked)
        rollout = self.rollouts.get(dialect.key(asked) if incoming.key is None else incoming.key)
        understood: Understood | None = None
        try:
            _refuse_at_sight(asked, served=served)
            if rollout is None:
                raise Refused("unknown_key", "Incorrect API key provided.")
            with rollout.serving(), _faults_marked(rollout):
                about = dialect.about(asked, self._caller.model)
                if about is not None:
                    return Served(reply=about)
                with _nested():
                    understood = await self._understood(dialect, incoming)
                answered = await self._serve(rollout, dialect, incoming, understood)
                if answered.exchange is not None:
                    await rollout.keep_raw(answered.exchange.call_id, asked.path, understood.body, answered.reply)
                return answered
        except Refused as refused:
            return Served(reply=dialect.refuse(refused, stream=understood is not None and understood.request.stream))

    async def _understood(self, dialect: Dialect, incoming: Incoming) -> Understood:
        """The request as the experiment's rules leave it. Raises Refused, CaptureError."""
        if incoming.dropped:
            raise too_long(str(incoming.dropped))
        encoding = incoming.asked.headers.get("content-encoding", "")
        large = bool(encoding) or len(incoming.body) > LARGE_BODY
        args = dialect, incoming.asked, incoming.body, encoding
        understood = await asyncio.to_thread(_read, *args) if large else _read(*args)
        # By the main thread alone: the time that a rule may take is limited by a signal.
        request = self._caller.rules.request(understood.request)
        return understood if request is understood.request else replace(understood, request=request)

    async def _serve(
        self, rollout: OpenRollout, dialect: Dialect, incoming: Incoming, understood: Understood
    ) -> Served:
        model, context, request = self._caller.model, self._caller.context, understood.request
        if understood.least > context:  # whoever compares and renders so many messages has time for nobody else
            rollout.conversation.overflow()
            raise TooLong(understood.least, context)
        counting = next((each for each in COUNTING if each is dialect and each.counts(incoming.asked)), None)
        if counting is not None:
            with _nested():
                count = await _aside(len(understood.body), rollout.conversation.count, request)
            return Served(reply=counting.count(count))
        if request.stream:
            incoming.may_ping(dialect.ping)
        again = rollout.conversation.repeated(understood.digest, dialect.retried(incoming.asked))
        if again is not None and again.answer is not None:
            rollout.counts["replayed"] += 1
            return Served(reply=dialect.answer(request, again.answer, model), exchange=again)
        if rollout.conversation.size >= self._max_calls:
            rollout.counts["final_answers"] += 1
            return Served(reply=dialect.answer(request, final_answer(), model))
        conversation = rollout.conversation
        with _nested():
            exchange = conversation.arrive(request, understood.digest, rollout.take_position())
        try:
            with _nested():
                if not await _aside(conversation.added_size(request, exchange), conversation.extend, exchange, request):
                    await _aside(len(understood.body), conversation.render, exchange, request)
            answer = await self._caller.call(rollout, dialect.name, request, exchange, incoming.until_gone)
        finally:
            if exchange.answer is None:
                rollout.conversation.leave(exchange)
        return Served(reply=dialect.answer(request, answer, model), exchange=exchange)


async def _aside(size: int, work: Callable[..., Result], *args: Any) -> Result:
    """Do work that encodes `size` characters: many of them in a thread, so that others are served meanwhile."""
    return await asyncio.to_thread(work, *args) if size > LONG_TEXT else work(*args)


def unavailable() -> Refused:
    """What a harness is told of faults that are not its own."""
    return Refused("unavailable", "The model is not available for the moment.")


def _read(dialect: Dialect, asked: Asked, body: bytes, encoding: str) -> Understood:
    """Raises Refused."""
    content = decoded(body, encoding) if encoding else body
    request = dialect.read(asked, content)
    calls = sum(len(message.tool_calls) for message in request.messages) if len(content) > LARGE_BODY else 0
    return Understood(
        body=content,
        digest=hashlib.sha256(content).digest(),
        request=request,
        least=LEAST_TOKENS * (len(request.messages) + len(request.tools) + calls),
    )


def _refuse_at_sight(asked: Asked, *, served: bool) -> None:
    """Raises Refused for what is not even looked at."""
    if "websocket" in asked.headers.get("upgrade", "").lower():
        raise Refused("no_websocket", "Websockets are not served; send each request by itself.")
    if not served:
        raise Refused("not_found", f"Unknown request URL: {asked.method} {asked.path}.")


@contextmanager
def _nested() -> Iterator[None]:
    """While a request is read and rendered, it alone decides how deep that goes."""
    try:
        yield
    except RecursionError as error:
        raise Refused("invalid_request", "The body of the request is nested too deeply.") from error


@contextmanager
def _faults_marked(rollout: OpenRollout) -> Iterator[None]:
    """Count how a request failed, and turn faults on our side into a refusal that tells the harness to come
    back.

    Whatever nobody expected is a capture fault too: the rollout must not pass for a sound one.
    """
    rollout_id, counts = rollout.opening.rollout_id, rollout.counts
    try:
        yield
    except asyncio.CancelledError:
        counts["left"] += 1
        raise
    except Refused:
        counts["refused"] += 1
        raise
    except EngineError as error:
        counts["engine_faults"] += 1
        log.error("rollout %s: %s", rollout_id, error)
        raise unavailable() from error
    except ClawexpError as error:
        counts["capture_faults"] += 1
        log.error("rollout %s: %s", rollout_id, error)
        raise unavailable() from error
    except Exception as error:  # a mistake of ours: it is noted here, and the harness is told in its dialect
        counts["capture_faults"] += 1
        log.exception("rollout %s: a request could not be served", rollout_id)
        raise unavailable() from error
