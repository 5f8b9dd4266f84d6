"""Random sessions of calls against the prefix tree: does it stand as an oracle says, token by token?

    python benchmarks/fuzz_tree.py --n 100000

Each rollout is a session that goes on, asks again, is cut off, answers twice alike, rewrites answers half way, adds
reminders, compacts, and talks through helpers in between; in half of them the vocabulary is so small that unrelated
sequences begin alike. Some of its rollouts make a group, whose trees are merged and packed.

The oracle is O(n^2), has a place for every token and knows of no segments: a prompt follows the earlier call with which
it shares most tokens, compared one by one, to the oldest place where there are several. Ends with status 1 at the first
rollout that differs, and prints its seed.
"""

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from clawexp.batch.batch import credited, validate
from clawexp.batch.pack import pack
from clawexp.outcome import Outcome
from clawexp.records import Call, Cause, Rollout, Span
from clawexp.tree.forest import merge, prune
from clawexp.tree.segment import Edge, Segment
from clawexp.tree.tree import EDGE_OF_CAUSE, Split, Tree, grow

WAYS: Sequence[Cause] = (
    "continue", "continue", "continue", "continue", "continue", "continue", "continue", "continue",
    "retry", "retry", "subagent", "subagent", "rewrite", "compaction", "reminder", "template",
)  # fmt: skip
GROUP = 3
CHUNK = 300


@dataclass(frozen=True, kw_only=True)
class Session:
    """Draws the calls of one rollout."""

    rng: random.Random
    rollout_id: str
    vocab: int
    opening: tuple[int, ...]
    calls: list[Call] = field(default_factory=list)

    def play(self, num_calls: int) -> Rollout:
        for number in range(num_calls):
            self.calls.append(self._call(number))
        return Rollout(
            id=self.rollout_id, task_id="t", harness="h", step=0, number=0, seed=0,
            outcome=Outcome.COMPLETED, reward=1.0, calls=tuple(self.calls),
        )  # fmt: skip

    def _some(self, most: int, least: int = 0) -> tuple[int, ...]:
        return tuple(self.rng.randrange(self.vocab) for _ in range(self.rng.randint(least, most)))

    def _call(self, number: int) -> Call:
        rng = self.rng
        before = rng.choice(self.calls[-3:] if rng.random() < 0.7 else self.calls) if self.calls else None
        way: Cause = rng.choice(WAYS) if before else "root"
        prompt = self._prompt(way, before) or self.opening
        answer = self._some(6, least=0 if rng.random() < 0.05 else 1)
        if before and way == "retry" and rng.random() < 0.3:
            answer = before.sampled_ids
        cut = rng.random() < 0.1
        return Call(
            rollout_id=self.rollout_id, call_id=f"{self.rollout_id}/{number}", position=number, dialect="openai_chat",
            kind="auxiliary" if way in ("compaction", "subagent") and rng.random() < 0.5 else "main",
            cause=way, parent=None, shared=0, prompt_ids=prompt, sampled_ids=answer,
            logprobs=tuple(-3 * rng.random() for _ in answer), spans=self._spans(len(answer)),
            finish_reason="abort" if cut else "stop", verdict=rng.choice(["text", "tool_calls", "malformed", "cut"]),
            requested={}, submitted={},
        )  # fmt: skip

    def _prompt(self, way: str, before: Call | None) -> tuple[int, ...]:
        rng = self.rng
        if before is None:
            return self.opening
        whole = before.prompt_ids + before.sampled_ids
        if way == "continue":
            return whole + self._some(5)
        if way == "retry":
            return before.prompt_ids
        if way in ("rewrite", "template"):
            return whole[: len(before.prompt_ids) + rng.randint(0, len(before.sampled_ids))] + self._some(3)
        if way == "reminder":
            return before.prompt_ids[: rng.randint(1, len(before.prompt_ids))] + self._some(4)
        summary = before.sampled_ids if way == "compaction" else ()
        return self.opening[: rng.randint(0, len(self.opening))] + summary + self._some(6, least=1)

    def _spans(self, length: int) -> tuple[Span, ...]:
        """New weights may come in the middle of an answer."""
        if not length:
            return ()
        at = self.rng.randint(1, length)
        spans = [Span(version=4, start=0, end=at), Span(version=5, start=at, end=length)]
        return tuple(span for span in spans if span.start < span.end)


@dataclass(eq=False)
class Place:
    """One token of the oracle's tree."""

    number: int
    """In order of creation."""
    above: "Place | None"
    token: int
    call: Call
    """That brought or sampled it."""
    edge: Edge | None
    """None in the middle of what a call brought."""
    logprob: float | None = None
    """None where it was not sampled."""
    version: int = -1
    below: list["Place"] = field(default_factory=list)


class Oracle:
    """Where every token of a rollout has to stand."""

    def __init__(self, rollout: Rollout) -> None:
        self.roots: list[Place] = []
        self.count = 0
        self.paths: dict[str, list[Place]] = {}
        self.splits: list[Split] = []
        self.siblings: dict[tuple[int, ...], list[Call]] = {}
        self.answers: dict[str, list[Place]] = {}
        self.followed: set[str] = set()
        for call in rollout.calls:
            self._hang(call)
        for attempts in self.siblings.values():
            self._judge(attempts)

    def _hang(self, call: Call) -> None:
        path = self._longest(call.prompt_ids)
        last = path[-1] if path else None
        self.followed |= {place.call.call_id for place in path if place.logprob is not None}
        edge = EDGE_OF_CAUSE[call.cause]
        if last is not None and last.logprob is not None:
            at = len(path) - len(last.call.prompt_ids)
            if at < len(last.call.sampled_ids):
                self.splits.append(Split(call_id=last.call.call_id, at=at, by=call.call_id))
            elif call.cause == "continue" and last.call.verdict == "tool_calls":
                edge = "tool"
        for token in call.prompt_ids[len(path) :]:
            path.append(self._add(path, token, call, edge))
            edge = None
        versions = [span.version for span in call.spans for _ in range(span.start, span.end)]
        for token, logprob, version in zip(call.sampled_ids, call.logprobs, versions, strict=True):
            place = self._add(path, token, call, "continue")
            place.logprob, place.version = logprob, version
            path.append(place)
        self.paths[call.call_id] = path
        self.answers[call.call_id] = path[len(call.prompt_ids) :]
        if call.sampled_ids:
            self.siblings.setdefault(call.prompt_ids, []).append(call)

    def _longest(self, prompt: Sequence[int]) -> list[Place]:
        """The way that spells most of a prompt; of several, the one that ends at the oldest place."""
        best: list[Place] = []
        for path in self.paths.values():
            length = 0
            while length < min(len(path), len(prompt)) and path[length].token == prompt[length]:
                length += 1
            older = length and length == len(best) and path[length - 1].number < best[-1].number
            if length > len(best) or older:
                best = path[:length]
        return list(best)

    def _add(self, path: list[Place], token: int, call: Call, edge: Edge | None) -> Place:
        above = path[-1] if path else None
        place = Place(self.count, above, token, call, edge)
        (above.below if above else self.roots).append(place)
        self.count += 1
        return place

    def _judge(self, attempts: Sequence[Call]) -> None:
        """Answers to one prompt: which repeat another one, which were replaced."""
        seen: dict[tuple[int, ...], Call] = {}
        for call in attempts:
            if call.sampled_ids in seen:
                self._name(call, "duplicate")
            else:
                seen[call.sampled_ids] = call
        distinct = list(seen.values())
        if not any(call.cause == "retry" for call in distinct[1:]):
            return
        used = [call for call in distinct if call.call_id in self.followed] or distinct[-1:]
        for call in distinct:
            if call not in used:
                spoilt = call.verdict in ("malformed", "cut") and call.finish_reason != "abort"
                self._name(call, "retry_model" if spoilt else "retry_infra")

    def _name(self, call: Call, edge: Edge) -> None:
        for place in self.answers[call.call_id]:
            place.edge = edge

    def depth_first(self) -> Iterator[Place]:
        """Children in order of creation."""
        stack = self.roots[::-1]
        while stack:
            place = stack.pop()
            yield place
            stack += place.below[::-1]


def compared(rollout: Rollout, tree: Tree) -> str | None:
    """What differs between a tree and the oracle; None where nothing does."""
    oracle = Oracle(rollout)
    places = list(oracle.depth_first())
    if tree.num_tokens != len(places):
        return f"{tree.num_tokens} tokens, not {len(places)}"
    at: dict[int, int] = {}  # the oracle's number of a place -> its index in the tree
    ends: list[int] = []
    index = 0
    for segment in tree.segments:
        above = ends[segment.parent] if segment.parent >= 0 else -1
        for offset, token in enumerate(segment.ids.tolist()):
            place = places[index]
            at[place.number] = index
            sampled = place.logprob is not None
            edge = place.edge or "continue" if not offset or sampled else segment.edge
            found = (token, above, segment.edge, segment.calls, segment.kind, *_drawn(segment, offset))
            wanted = (
                place.token, at[place.above.number] if place.above else -1, edge, (place.call.call_id,),
                place.call.kind, sampled, np.float32(place.logprob or 0), place.version,
            )  # fmt: skip
            if found != wanted or segment.trained != sampled:
                return f"token {index} of the tree is {found}, not {wanted}"
            if offset and not sampled and place.edge is not None:
                return f"token {index}: what {place.call.call_id} brought begins inside a segment"
            above = index
            index += 1
        ends.append(above)
    if list(tree.splits) != oracle.splits:
        return f"splits {tree.splits}, not {oracle.splits}"
    return None


def _drawn(segment: Segment, offset: int) -> tuple[bool, np.float32, int]:
    """Whether a token was sampled; its logprob and version."""
    if not segment.sampled:
        return False, np.float32(0), -1
    return True, segment.logprobs[offset], int(segment.versions[offset])


def packed_wrongly(trees: Sequence[Tree]) -> str | None:
    """What is wrong with a group's batch; None where nothing is: merging moves no rollout's weight."""
    pruned = [prune(tree, auxiliary="full") for tree in trees]
    worth = {tree.rollouts[0]: float(1 + number) for number, tree in enumerate(pruned) if tree.segments}
    totals = []
    for packed in (pruned, [merge(pruned)]):
        batch = pack(packed, worth)
        validate(batch)
        totals.append(float(credited(batch, batch["worth"][batch["owners"]])["positive"].double().sum()))
    mean = sum(worth.values()) / max(len(worth), 1)
    return None if np.allclose(totals, mean, rtol=1e-5) else f"weights add up to {totals}, not {mean}"


def group_of(seed: int) -> list[Rollout]:
    """Rollouts of one task: they begin alike, and some go on so."""
    rng = random.Random(seed)
    vocab = rng.choice([2, 3, 5, 1000])
    opening = tuple(rng.randrange(vocab) for _ in range(rng.randint(1, 6)))
    again = rng.random() < 0.3
    made = []
    for number in range(GROUP):
        own = random.Random(f"{seed}/0" if again and number < 2 else f"{seed}/{number}")
        made.append(Session(rng=own, rollout_id=f"r{number}", vocab=vocab, opening=opening).play(own.randint(1, 14)))
    return made


def play(seeds: Sequence[int]) -> tuple[Counter[str], str | None]:
    """Groups of these seeds: what happened in them, and the first difference."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        rollouts = group_of(seed)
        trees = [grow(rollout) for rollout in rollouts]
        for rollout, tree in zip(rollouts, trees, strict=True):
            if wrong := compared(rollout, tree):
                return seen, f"seed {seed}, {rollout.id}: {wrong}"
            seen.update(rollouts=1, calls=len(rollout.calls), tokens=tree.num_tokens, splits=len(tree.splits))
            seen.update(f"edge {segment.edge}" for segment in tree.segments)
        if wrong := packed_wrongly(trees):
            return seen, f"seed {seed}: {wrong}"
    return seen, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000, help=f"rollouts, {GROUP} in a group")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + -(-options.n // GROUP))
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    seen: Counter[str] = Counter()
    begin = time.monotonic()
    with multiprocessing.Pool(options.processes) as pool:
        for number, (some, wrong) in enumerate(pool.imap_unordered(play, chunks)):
            seen.update(some)
            if wrong:
                print(wrong)
                return 1
            if number % 20 == 19:
                print(f"{seen['rollouts']} rollouts, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    counts = ("rollouts", "calls", "tokens")
    print(", ".join(f"{seen[name]} {name}" for name in counts) + ": every token stands where the oracle has it")
    print(", ".join(f"{name} {n}" for name, n in sorted(seen.items()) if name not in counts))
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
