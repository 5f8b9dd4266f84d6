"""Random harnesses against the model boundary: do the journal's ids equal those of an oracle?

    python benchmarks/fuzz_capture.py --n 100000

Each rollout is a harness that retries, compacts, talks through helpers at the same time, asks the same thing twice,
leaves in the middle of an answer, drops answers, adds reminders, and writes arguments back in other words. Everything
of the boundary but its sockets is real: dialect, matching, rendering, commit, journal, tree. Only the model is not:
its answers are drawn here, in ids that no encoder would give, so that an id which was encoded again shows.

The oracle is O(n^2) and knows nothing of digests: for each request it looks through all earlier calls of the rollout
for the longest one whose messages and answer begin it, and its ids are what the request must continue. Ends with
status 1 at the first rollout that differs, and prints its seed.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clawexp.capture.caller import Caller
from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.dialects.openai_messages import read_messages
from clawexp.capture.generation import Sampler
from clawexp.capture.journal import read_calls
from clawexp.capture.message import Message, Parsed, ToolCall, Tools
from clawexp.capture.open_rollout import Opening
from clawexp.capture.rules import Rules
from clawexp.capture.service import CaptureService, Incoming
from clawexp.engine.client import Generation
from clawexp.outcome import Outcome
from clawexp.records import Call, Rollout, Span
from clawexp.tree.tree import grow

STOP, ANSWER, TURN, FILLER = 256, 257, 258, 259
"""Ids below 256 are bytes; a filler means nothing, and an encoder writes none."""
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
WORDS = ("read", "the", "file", "naïve", "☕", "notes.txt", "x = 4", "42", "done", "sum")


class Bytes:
    """A rendering whose ids can be read: a turn is its JSON."""

    stop_ids: tuple[int, ...] = (STOP,)
    digest = "bytes"

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        head = [TURN, *json.dumps([dict(tool) for tool in tools]).encode(), STOP]
        return head + self.turns(messages)

    def turns(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            calls = [[call.name, call.arguments] for call in message.tool_calls]
            ids += [TURN, *json.dumps([message.role, message.content, message.reasoning, calls]).encode(), STOP]
        return [*ids, ANSWER]

    def extend(
        self, prompt: np.ndarray, sampled: Sequence[int], new_messages: Sequence[Message], tools: Tools
    ) -> list[int]:
        end = [] if sampled[-1] == STOP else [STOP]
        return [*end, *self.turns(new_messages)]

    def parse(self, sampled_ids: Sequence[int]) -> Parsed:
        text = bytes(number for number in sampled_ids if number < 256).decode(errors="replace")
        if sampled_ids[-1] != STOP:
            return Parsed(content=text, reasoning="", tool_calls=(), verdict="cut")
        content, reasoning, calls = json.loads(text)
        made = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
        return Parsed(content=content, reasoning=reasoning, tool_calls=made, verdict="tool_calls" if made else "text")


def words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def value(rng: random.Random, depth: int = 2) -> Any:
    """Any JSON value; numbers that JavaScript writes in another way among them."""
    kinds = ["text", "whole", "float", "flag", "none"] + (["list", "object"] if depth else [])
    match rng.choice(kinds):
        case "text":
            return words(rng, 3)
        case "whole":
            return rng.randint(-9, 999)
        case "float":
            return rng.choice([1.0, 0.5, -3.0, 2.25])
        case "flag":
            return rng.random() < 0.5
        case "list":
            return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        case "object":
            return {words(rng, 1): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return None


class Drawn(Sampler):
    """The model: answers at random, after a while, in ids with fillers among them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def sample(self, ids: np.ndarray, temperature: float, max_tokens: int, key: str) -> Generation:
        rng = self._rng
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(0)
        content = "" if rng.random() < 0.2 else words(rng, 6)
        calls = [["run", {"a": value(rng)}] for _ in range(rng.choice([0, 1, 1, 2]))]
        reasoning = words(rng, 3) if rng.random() < 0.2 else ""
        drawn: list[int] = []
        for number in json.dumps([content, reasoning, calls]).encode():
            drawn += [number] if rng.random() < 0.9 else [FILLER, number]
        cut = rng.random() < 0.05
        drawn = drawn[: rng.randint(1, len(drawn))] if cut else [*drawn, STOP]
        return Generation(
            ids=tuple(drawn),
            logprobs=tuple(-rng.random() for _ in drawn),
            finish_reason="length" if cut else "stop",
            spans=(Span(version=0, start=0, end=len(drawn)),),
        )


@dataclass(eq=False)
class Told:
    """One call as the oracle remembers it."""

    position: int
    body: bytes
    turns: list[str]
    answer: str
    thoughts: dict[int, str]
    """Reasoning by the place of its message, that of the answer among it."""
    ids: list[int]
    delivered: bool = True
    continued: bool = False


def said(message: dict[str, Any]) -> str:
    """A turn as a harness's history has it -> what it says but for its reasoning, as text."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    calls = []
    for call in message.get("tool_calls") or []:
        arguments = json.loads(call["function"]["arguments"], parse_float=_number)
        calls.append([call["function"]["name"], arguments])
    assistant = message["role"] == "assistant"
    text = content.strip() if assistant else content
    return json.dumps([message["role"], text, calls], sort_keys=True)


def thoughts(messages: Sequence[dict[str, Any]]) -> dict[int, str]:
    """The reasoning of a history, by place."""
    told = ((place, message.get("reasoning_content", "").strip()) for place, message in enumerate(messages))
    return {place: text for place, text in told if text}


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


@dataclass
class Oracle:
    """What each prompt has to be."""

    rendering: Bytes
    told: list[Told] = field(default_factory=list)
    asked: list[tuple[list[str], dict[int, str]]] = field(default_factory=list)
    """Requests of calls that have an answer, or wait for one."""

    def replayed(self, body: bytes, retried: bool) -> Told | None:
        """The newest answer to these bytes that is known to be lost; else, of a retry, the newest that may be."""
        candidates = [call for call in self.told if call.body == body]
        lost = [call for call in candidates if not call.delivered]
        lost = lost or [call for call in candidates if retried and not call.continued]
        if not lost:
            return None
        newest = max(lost, key=lambda call: call.position)
        newest.delivered = True
        return newest

    def prompt(self, messages: Sequence[dict[str, Any]]) -> tuple[list[int], Told | None]:
        turns, told = [said(message) for message in messages], thoughts(messages)
        best: Told | None = None
        for call in self.told:
            length = len(call.turns)
            begins = len(turns) > length and turns[:length] == call.turns and turns[length] == call.answer
            begins &= all(call.thoughts.get(place, "") == text for place, text in told.items() if place <= length)
            if begins and (best is None or (length, call.position) > (len(best.turns), best.position)):
                best = call
        read = read_messages(list(messages))
        if best is None:
            return self.rendering.render(read, tuple(TOOLS)), None
        best.continued = True
        end = [] if best.ids[-1] == STOP else [STOP]
        return [*best.ids, *end, *self.rendering.turns(read[len(best.turns) + 1 :])], best


@dataclass
class Harness:
    """One rollout's harness, and the oracle beside it."""

    rng: random.Random
    service: CaptureService
    oracle: Oracle
    key: str
    expected: list[tuple[list[int], str | None]] = field(default_factory=list)
    """Of each committed call, in order of commit: prompt, and cause where it is not for the boundary to judge."""
    seen: Counter[str] = field(default_factory=Counter)

    async def ask(self, messages: list[dict[str, Any]], *, retried: bool = False) -> dict[str, Any] | None:
        """The answer as the harness reads it; None where it left before it came."""
        body = json.dumps({"messages": messages, "tools": TOOLS, "stream": False}).encode()
        again = self.oracle.replayed(body, retried)
        prompt, base = ([], None) if again else self.oracle.prompt(messages)
        turns = [said(message) for message in messages]
        asking = (turns, thoughts(messages))
        cause = "retry" if asking in self.oracle.asked else None if base is None else "continue"
        if not again:
            self.oracle.asked.append(asking)
        leaves = self.rng.random() < 0.05
        try:
            async with asyncio.timeout(None) as patience:
                incoming = self._incoming(body, retried, patience if leaves else None)
                served = await self.service.serve(incoming)
        except TimeoutError:
            self.seen["left"] += 1
            self.oracle.asked.remove(asking)
            return None
        message: dict[str, Any] = json.loads(served.reply.body)["choices"][0]["message"]
        if again:
            self.seen["replayed"] += 1
            return message
        exchange = served.exchange
        assert exchange is not None
        assert exchange.sequence is not None
        known = thoughts(messages) if base is None else base.thoughts | _after(thoughts(messages), len(base.turns))
        known[len(turns)] = message.get("reasoning_content", "").strip()
        self.oracle.told.append(Told(exchange.position, body, turns, said(message), known, exchange.sequence.tolist()))
        self.expected.append((prompt, cause))
        if self.rng.random() < 0.05:
            self.seen["undelivered"] += 1
            exchange.delivered = self.oracle.told[-1].delivered = False
            return None
        return message

    def _incoming(self, body: bytes, retried: bool, patience: asyncio.Timeout | None) -> Incoming:
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        if retried:
            headers["x-stainless-retry-count"] = "1"
        return Incoming(
            asked=Asked(method="POST", path="/v1/chat/completions", query={}, headers=headers),
            body=body,
            dropped=0,
            key=None,
            until_gone=_leaving(patience),
            may_ping=lambda ping: None,
        )

    async def converse(self, messages: list[dict[str, Any]], turns: int) -> None:
        """One agent: a conversation with all that harnesses do to theirs."""
        rng = self.rng
        for _ in range(turns):
            asked = [*messages, user("Remember the rules.")] if rng.random() < 0.1 else messages
            answer = await self.ask(asked)
            while answer is None:
                answer = await self.ask(asked, retried=rng.random() < 0.7)
            if rng.random() < 0.08:  # a second sample of the same, or a retry that was not needed
                again = await self.ask(asked, retried=rng.random() < 0.5)
                answer = again or answer
            if not answer.get("tool_calls") and rng.random() < 0.3:
                messages = [*messages, user("You said nothing.")]  # and the answer is dropped
                continue
            messages = [*messages, self.echo(answer), *results(rng, answer)]
            if rng.random() < 0.2:  # reasoning of turns that are over is dropped by some, and was told till then
                for message in messages[:-2]:
                    self.seen["forgotten"] += message.pop("reasoning_content", None) is not None
            if rng.random() < 0.07:
                self.seen["compacted"] += 1
                messages = [messages[0], user(f"Summary: {words(rng, 8)}"), *messages[-2:]]
                while len(messages) > 2 and messages[2]["role"] == "tool":
                    del messages[2]
            elif rng.random() < 0.05:
                self.seen["rewritten"] += 1
                messages[rng.randrange(len(messages))] = user(words(rng, 4))

    def echo(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer as the harness writes it into its history."""
        rng = self.rng
        echoed: dict[str, Any] = {"role": "assistant", "content": answer.get("content")}
        if echoed["content"] and rng.random() < 0.3:
            echoed["content"] = [{"type": "text", "text": echoed["content"], "cache_control": {"type": "ephemeral"}}]
        if answer.get("reasoning_content") and rng.random() < 0.7:
            other = rng.random() < 0.05
            echoed["reasoning_content"] = words(rng, 3) if other else answer["reasoning_content"]
        if answer.get("tool_calls"):
            echoed["tool_calls"] = [self._call(call) for call in answer["tool_calls"]]
        return echoed

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        arguments = json.loads(call["function"]["arguments"])
        spaced = json.dumps(arguments, ensure_ascii=self.rng.random() < 0.5, indent=self.rng.choice([None, 1]))
        name = call["function"]["name"]
        return {"id": call["id"].upper(), "type": "function", "function": {"name": name, "arguments": spaced}}


def _after(told: dict[int, str], place: int) -> dict[int, str]:
    return {at: text for at, text in told.items() if at > place}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def results(rng: random.Random, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Of its tool calls; a word of the user's where there are none."""
    calls = answer.get("tool_calls") or []
    told = [{"role": "tool", "tool_call_id": call["id"].upper(), "content": words(rng, 4)} for call in calls]
    return told or [user(words(rng, 3))]


@contextlib.contextmanager
def _leaving(patience: asyncio.Timeout | None) -> Iterator[None]:
    """Inside, the client leaves at the next moment."""
    if patience is not None:
        patience.reschedule(asyncio.get_running_loop().time())
    try:
        yield
    finally:
        if patience is not None and not patience.expired():
            patience.reschedule(None)


async def rollout(seed: int, folder: Path) -> tuple[list[Call], Harness]:
    """Play one, and read its journal back."""
    rng = random.Random(seed)
    rendering = Bytes()
    caller = Caller(
        model="m", context=10**9, max_tokens=10**6, rendering=rendering, sampler=Drawn(rng), rules=Rules({})
    )
    service = CaptureService(caller, max_calls=10**6, fsync=False, keep_raw=False)
    journal = folder / f"{seed}.log"
    await service.open(Opening(rollout_id=f"r{seed}", key="k", seed=seed, temperature=1.0, journal=journal))
    harness = Harness(rng, service, Oracle(rendering), "k")
    first = [{"role": "system", "content": "Work."}, user(words(rng, 5))]
    async with asyncio.TaskGroup() as group:
        group.create_task(harness.converse(first, rng.randint(1, 5)))
        for _ in range(rng.choice([0, 0, 1, 2])):
            # A helper with a system prompt of its own, or the same conversation once more.
            own = [{"role": "system", "content": words(rng, 2)}, user(words(rng, 3))]
            group.create_task(harness.converse(rng.choice([own, first]), rng.randint(1, 3)))
    counts = await service.close(f"r{seed}")
    calls = read_calls(journal)
    journal.unlink()
    harness.seen.update(calls=len(calls), rollouts=1, **{f"fork {name}": n for name, n in counts["forks"].items()})
    return calls, harness


def compared(seed: int, calls: Sequence[Call], harness: Harness) -> str | None:
    """What differs; None where nothing does."""
    if len(calls) != len(harness.expected):
        return f"{len(calls)} calls in the journal, {len(harness.expected)} expected"
    before: list[tuple[int, ...]] = []
    for call, (prompt, cause), told in zip(calls, harness.expected, harness.oracle.told, strict=True):
        whole = call.prompt_ids + call.sampled_ids
        if list(call.prompt_ids) != prompt or list(whole) != told.ids:
            return f"{call.call_id}: another prompt than the oracle's"
        if cause is not None and call.cause != cause:
            return f"{call.call_id} is recorded as {call.cause}, and not as {cause}"
        longest = max((_shared(call.prompt_ids, earlier) for earlier in before), default=0)
        if call.shared != longest:
            return f"{call.call_id} shares {longest} ids with a call before it, not {call.shared}"
        before.append(whole)
    tree = grow(_as_rollout(f"r{seed}", calls))
    if sum(len(s.ids) for s in tree.segments if s.sampled) != sum(len(call.sampled_ids) for call in calls):
        return "a sampled id is not in the tree once"
    return None


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _as_rollout(rollout_id: str, calls: Sequence[Call]) -> Rollout:
    ordered = tuple(sorted(calls, key=lambda call: call.position))
    return Rollout(
        id=rollout_id, task_id="t", harness="h", step=0, number=0, seed=0,
        outcome=Outcome.COMPLETED, reward=1.0, calls=ordered,
    )  # fmt: skip


async def _play(seeds: Sequence[int], folder: Path) -> tuple[Counter[str], str | None]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        calls, harness = await rollout(seed, folder)
        seen.update(harness.seen)
        wrong = compared(seed, calls, harness)
        if wrong:
            return seen, f"seed {seed}: {wrong}"
    return seen, None


def play(folder: str, seeds: Sequence[int]) -> tuple[Counter[str], str | None]:
    """Some rollouts: what happened in them, and the first difference."""
    return asyncio.run(_play(seeds, Path(folder)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000, help="rollouts")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.n)
    chunks = [seeds[start : start + 200] for start in range(0, len(seeds), 200)]
    seen: Counter[str] = Counter()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool(options.processes) as pool:
        for number, (some, wrong) in enumerate(pool.imap_unordered(partial(play, folder), chunks)):
            seen.update(some)
            if wrong:
                print(wrong)
                return 1
            if number % 50 == 49:
                print(f"{seen['rollouts']} rollouts, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    print(f"{seen['rollouts']} rollouts, {seen['calls']} calls: every prompt is the oracle's")
    print(", ".join(f"{name} {n}" for name, n in sorted(seen.items()) if name not in ("rollouts", "calls")))
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
