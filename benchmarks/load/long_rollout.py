"""One long rollout inside this process, without sockets: what a call of it costs, stage by stage, and what n calls do.

All of the boundary but mitmproxy is real; the engine's answers are made here. The rollout's 200th call has a prompt of
about 64,000 tokens.
"""

import asyncio
import contextlib
import inspect
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from clawexp.capture.caller import Caller
from clawexp.capture.conversation import Conversation
from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.dialects.table import DIALECTS as SERVED
from clawexp.capture.generation import Sampler
from clawexp.capture.open_rollout import Opening, OpenRollout
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.rules import Rules
from clawexp.capture.service import CaptureService, Incoming
from clawexp.capture.tokenizer import Tokenizer
from clawexp.engine.client import Generation
from clawexp.records import Span
from load.checkpoint import excerpt
from load.clawexp_capture import CONTEXT
from load.dialects import Dialect
from load.stub import MODEL

CALLS = 200
RESULT = 900
"""Characters of a tool's result: with its answer, a call adds some 320 tokens."""
FIRST = 400
LAST = 20
"""Calls at the end whose times are looked at."""
ANSWER = (
    "I read the next part of {path}, because the class that the error names is defined there and its methods "
    "call the one that I want to change. {words}\n<tool_call>\n"
    '{{"name": "read", "arguments": {{"path": "{path}"}}}}\n</tool_call><|im_end|>'
)
MATCHED = ("match", "extend")
"""Stages that the goal is set for."""


class Written(Sampler):
    """The model: an answer of about 80 tokens, at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(0)

    async def sample(self, ids: np.ndarray, temperature: float, max_tokens: int, key: str) -> Generation:
        words = excerpt(self._rng.randrange(10_000), 120)
        drawn = self._tokenizer.encode(ANSWER.format(path=f"module_{self._rng.randrange(99)}.py", words=words))
        return Generation(
            ids=tuple(drawn),
            logprobs=tuple(-self._rng.expovariate(4.0) for _ in drawn),
            finish_reason="stop",
            spans=(Span(version=0, start=0, end=len(drawn)),),
        )


@dataclass(kw_only=True)
class Stages:
    """Seconds by stage, of the call that is being made."""

    seconds: dict[str, float] = field(default_factory=dict)
    encoded: int = 0
    """Ids that the tokenizer has made of prompts so far."""

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same, with its time noted."""

        @wraps(work)
        async def waited(*args: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            result = await work(*args, **named)
            self._note(name, begin)
            return result

        @wraps(work)
        def done(*args: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            result = work(*args, **named)
            self._note(name, begin)
            return result

        return waited if inspect.iscoroutinefunction(work) else done

    def _note(self, name: str, begin: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    @contextlib.contextmanager
    def watching(self, dialect: Any, tokenizer: Tokenizer) -> Iterator[None]:
        """Inside, the stages of the capture path are timed, and encoded ids counted."""
        watched = (
            (type(dialect), "read", "decode"),
            (Conversation, "arrive", "match"),
            (Conversation, "extend", "extend"),
            (Conversation, "render", "render"),
            (Qwen3Rendering, "parse", "parse"),
            (Conversation, "attach", "attach"),
            (OpenRollout, "commit", "commit"),
            (Conversation, "settle", "settle"),
            (type(dialect), "answer", "answer"),
        )
        encode = tokenizer.encode
        with contextlib.ExitStack() as stack:
            for owner, name, stage in watched:
                work = getattr(owner, name)
                stack.callback(setattr, owner, name, work)
                setattr(owner, name, self.timed(stage, work))

            def counted(text: str, **named: Any) -> list[int]:
                ids = encode(text, **named)
                self.encoded += len(ids)
                return ids

            stack.callback(setattr, tokenizer, "encode", encode)
            tokenizer.encode = counted
            yield


@dataclass(frozen=True, kw_only=True)
class Long:
    """What a rollout of n calls showed."""

    stages_ms: dict[str, float]
    """Median of the last calls; `match` and `extend` are the conversation's part."""
    slowest_ms: float
    """Of match and extend together, among the last calls."""
    prompt_tokens: int
    encoded: int
    """Ids that were encoded for all prompts together."""
    journal_bytes: int
    body_bytes: int


async def play(tokenizer: Tokenizer, dialect: Dialect, calls: int, folder: Path) -> Long:
    """A rollout of so many calls, each sent with the whole history."""
    rendering = Qwen3Rendering(tokenizer)
    sampler = Written(Tokenizer(Path(tokenizer.name_or_path)))
    caller = Caller(
        model=MODEL, context=CONTEXT, max_tokens=1024, rendering=rendering, sampler=sampler, rules=Rules({})
    )
    service = CaptureService(caller, max_calls=10_000, fsync=True, keep_raw=False)
    journal = Path(tempfile.mkdtemp(dir=folder)) / "long.log"
    await service.open(Opening(rollout_id="long", key="k", seed=0, temperature=1.0, journal=journal))
    rollout = service.rollouts["k"]
    path, headers = dialect.path(stream=False), dialect.headers("k") | {"content-type": "application/json"}
    asked = Asked(method="POST", path=path, query={}, headers=headers)
    stages, seen = Stages(), []
    served = next(each for each in SERVED if each.serves(asked))
    history = [dialect.user(excerpt(0, FIRST))]
    body = b""
    with stages.watching(served, tokenizer):
        for number in range(calls):
            body = json.dumps(dialect.body(history, stream=False)).encode()
            stages.seconds = {}
            incoming = Incoming(
                asked=asked,
                body=body,
                dropped=0,
                key=None,
                until_gone=contextlib.nullcontext(),
                may_ping=lambda _: None,
            )
            reply = (await service.serve(incoming)).reply
            assert reply.status == 200, reply.body
            seen.append(stages.seconds)
            told = dialect.read(reply.body, stream=False)
            history += [*told.items, *(dialect.result(call, excerpt(number, RESULT)) for call in told.calls)]
    last = seen[-LAST:]
    assert rollout.last is not None
    summary = await service.close("long")
    assert summary["forks"] == {}, summary
    return Long(
        stages_ms={stage: 1000 * statistics.median(each[stage] for each in last) for stage in last[-1]},
        slowest_ms=1000 * max(sum(each[stage] for stage in MATCHED) for each in last),
        prompt_tokens=_prompt_tokens(journal),
        encoded=stages.encoded,
        journal_bytes=journal.stat().st_size,
        body_bytes=len(body),
    )


def _prompt_tokens(journal: Path) -> int:
    """Of the last call."""
    record = json.loads(journal.read_text().splitlines()[-1].partition(" ")[2])
    return record["shared"] + len(record["new_ids"])


def exponent(sizes: Sequence[int], amounts: Sequence[float]) -> float:
    """Slope of the line through the logarithms: 1 where amounts grow as sizes do, 2 where as their squares."""
    x, y = [math.log(size) for size in sizes], [math.log(amount) for amount in amounts]
    return statistics.linear_regression(x, y).slope


def played(tokenizer: Tokenizer, dialect: Dialect, calls: int, folder: Path) -> Long:
    return asyncio.run(play(tokenizer, dialect, calls, folder))
