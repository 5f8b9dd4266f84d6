"""One exchange -> one call: sampled, parsed, written to the journal, and only then an answer."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clawexp.capture.exchange import Exchange
from clawexp.capture.generation import Sampler
from clawexp.capture.meaning import digests
from clawexp.capture.message import Answer, Finish, Message, Parsed, Request
from clawexp.capture.open_rollout import OpenRollout
from clawexp.capture.rendering import Rendering
from clawexp.capture.rules import Rules
from clawexp.capture.sampling import decide, room_for
from clawexp.engine.client import Generation
from clawexp.records import CallRecord, Edit, ParseVerdict

FINISH: Mapping[ParseVerdict, Finish] = {
    "text": "stop",
    "tool_calls": "tool_calls",
    "malformed": "stop",
    "cut": "length",
}
FINAL = "The limit on model calls for this task is reached, so this is the last answer."
EMPTY = "(empty answer)"
"""Shown where nothing visible was sampled: several harnesses rewrite their history after an empty reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the engine gave, and how it was asked."""

    dialect: str
    generation: Generation
    requested: Mapping[str, Any]
    submitted: Mapping[str, Any]
    edits: tuple[Edit, ...]
    started: float
    engine_s: float


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The model behind the boundary: how it is rendered, sampled and limited."""

    model: str
    context: int
    max_tokens: int
    rendering: Rendering
    sampler: Sampler
    rules: Rules

    async def call(
        self,
        rollout: OpenRollout,
        dialect: str,
        request: Request,
        exchange: Exchange,
        until_gone: AbstractContextManager[None],
    ) -> Answer:
        """The answer, once its call is durable.

        Raises Refused where the prompt does not fit, EngineError, CaptureError and JournalError as `Sampler` and
        `CallJournal` do; then nothing was recorded. A client that leaves ends the sampling, never the commit.
        """
        sampled = await self._sample(rollout, dialect, request, exchange, until_gone)
        parsed = self.rendering.parse(sampled.generation.ids)
        message, edits = self.rules.answer(_said(parsed, exchange))
        exchange.call_id, exchange.rewritten = f"{rollout.opening.rollout_id}/{exchange.position}", bool(edits)
        answer = _answer(message, parsed.verdict, exchange, sampled)
        # What could fail comes before the commit: a call that is in the journal has its answer sent.
        answered = digests(answer.message)
        rollout.conversation.attach(exchange, sampled.generation.ids)
        call = _record(rollout, exchange, sampled, parsed.verdict, edits)
        await rollout.commit(call, exchange.prompt[exchange.shared :].tolist())
        rollout.conversation.settle(exchange, answer, answered)
        return answer

    async def _sample(
        self,
        rollout: OpenRollout,
        dialect: str,
        request: Request,
        exchange: Exchange,
        until_gone: AbstractContextManager[None],
    ) -> Sampled:
        started = time.time()
        if len(exchange.prompt) >= self.context:
            rollout.conversation.overflow()
        room = room_for(len(exchange.prompt), self.context, self.max_tokens)
        submitted, edits = decide(request, rollout.opening.temperature, room)
        key = f"{rollout.opening.seed}/{rollout.opening.rollout_id}/{exchange.position}"
        begin = time.monotonic()
        with until_gone:
            generation = await self.sampler.sample(
                exchange.prompt, submitted["temperature"], submitted["max_tokens"], key
            )
        return Sampled(
            dialect=dialect,
            generation=generation,
            requested=request.requested,
            submitted={**submitted, "stop_token_ids": list(self.rendering.stop_ids)},
            edits=edits,
            started=started,
            engine_s=time.monotonic() - begin,
        )


def final_answer() -> Answer:
    """What a rollout gets that has used up its calls. Nothing was sampled, so it costs no tokens."""
    return Answer(
        id="final",
        created=int(time.time()),
        message=Message(role="assistant", content=FINAL),
        finish="stop",
        prompt_tokens=0,
        sampled_tokens=0,
    )


def _record(
    rollout: OpenRollout, exchange: Exchange, sampled: Sampled, verdict: ParseVerdict, rewrites: tuple[Edit, ...]
) -> CallRecord:
    generation = sampled.generation
    return CallRecord(
        rollout_id=rollout.opening.rollout_id,
        call_id=exchange.call_id,
        position=exchange.position,
        dialect=sampled.dialect,
        kind=exchange.kind,
        cause=exchange.cause,
        parent=exchange.parent.call_id if exchange.parent is not None else None,
        shared=exchange.shared,
        sampled_ids=tuple(generation.ids),
        logprobs=tuple(generation.logprobs),
        spans=tuple(generation.spans),
        finish_reason=generation.finish_reason,
        verdict=verdict,
        requested=sampled.requested,
        submitted=sampled.submitted,
        edits=(*exchange.edits, *sampled.edits, *rewrites),
        rewritten=exchange.rewritten,
        started=sampled.started,
        finished=time.time(),
        engine_s=sampled.engine_s,
        experts=_new_experts(exchange, generation),
    )


def _new_experts(exchange: Exchange, generation: Generation) -> NDArray[np.int16] | None:
    """From the first token that the parent has not, or its last, which it had not computed."""
    if generation.experts is None:
        return None
    parent = exchange.parent
    known = 0 if parent is None or parent.sequence is None else min(exchange.shared, len(parent.sequence) - 1)
    return generation.experts[known:]


def _said(parsed: Parsed, exchange: Exchange) -> Message:
    # Letters and digits only: some harnesses drop everything else from an id when they write it back.
    calls = [replace(call, id=f"call{exchange.position}t{n}") for n, call in enumerate(parsed.tool_calls)]
    return Message(role="assistant", content=parsed.content, reasoning=parsed.reasoning, tool_calls=tuple(calls))


def _answer(message: Message, verdict: ParseVerdict, exchange: Exchange, sampled: Sampled) -> Answer:
    finish = FINISH[verdict] if message.tool_calls or verdict != "tool_calls" else "stop"
    if not message.content and not message.tool_calls:
        message = replace(message, content=EMPTY)
    return Answer(
        id=f"call{exchange.position}",
        created=int(sampled.started),
        message=message,
        finish=finish,
        prompt_tokens=len(exchange.prompt),
        sampled_tokens=len(sampled.generation.ids),
    )
