"""Which call is in which slot, and what is computed next: one small turn of work at a time.

A turn fills a few prompt tokens, then draws one token for every call whose prompt is complete, so that a long prompt
stalls nobody. A prompt takes over the longest beginning that any slot already holds: the next turn of a rollout and the
members of a group compute only what is new.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clawexp.engine.cache import SlotCache, common_length
from clawexp.engine.decode import Forward, sample, score
from clawexp.model.decoder import Policy
from clawexp.records import Scored

WORTH_COPYING = 16
"""A shared beginning is taken over where it spares at least so many tokens."""


@dataclass(eq=False)
class Generating:
    """One call in the engine."""

    prompt: NDArray[np.int64]
    temperature: float
    max_tokens: int
    stop_ids: frozenset[int]
    random: np.random.Generator
    done: asyncio.Future[None]
    said: Sequence[int] | None = None
    """Ids to say instead of drawn ones; the last is a stop id."""
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Of the weights that each id was drawn from."""
    experts: NDArray[np.int16] | None = None
    """Of each token of prompt and answer but the last, [prompt + ids - 1, layers, k]; None of a dense model."""

    @property
    def next_said(self) -> int | None:
        """The id to say now; None: draw one."""
        return None if self.said is None else self.said[len(self.ids)]

    @property
    def finish_reason(self) -> str:
        return "stop" if self.ids[-1] in self.stop_ids else "length"

    def spans(self) -> list[dict[str, int]]:
        """Runs of one version, as the contract writes them."""
        spans: list[dict[str, int]] = []
        for index, version in enumerate(self.versions):
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": index, "end": index})
            spans[-1]["end"] = index + 1
        return spans


class Scheduler:
    """All calls of one engine. `run` works for ever; the rest is called between its turns, from the same loop."""

    def __init__(
        self, policy: Policy, *, seed: int, slots: int, prefill_chunk: int, context: int, deterministic: bool
    ) -> None:
        self.version = 0
        self.context = context
        self._policy, self._seed = policy, seed
        self._prefill_chunk, self._deterministic = prefill_chunk, deterministic
        self._cache = SlotCache(policy.shape, slots, context)
        self._forward = Forward(policy, self._cache, slots, deterministic)
        self._slots = slots
        self._idle = list(range(slots))  # the longest unused first
        self._stale: set[int] = set()  # slots that hold keys of earlier weights
        self._queue: deque[Generating] = deque()
        self._filling: list[Generating] = []
        self._drawing: list[Generating] = []
        self._paused = False
        self._awake = asyncio.Event()

    @property
    def vocab(self) -> int:
        return self._policy.shape.vocab

    @property
    def busy(self) -> int:
        """How many calls are in the engine."""
        return len(self._queue) + len(self._filling) + len(self._drawing)

    async def generate(
        self,
        key: str,
        ids: Sequence[int],
        temperature: float,
        max_tokens: int,
        stop_ids: Sequence[int],
        said: Sequence[int] | None = None,
    ) -> Generating:
        """Sample an answer; the key decides the randomness. Or have it `said`, which then ends with a stop id or has
        `max_tokens` ids: all else is computed alike. Cancelling frees the slot at once."""
        call = Generating(
            np.array(ids, dtype=np.int64),
            temperature,
            min(max_tokens, self.context - len(ids)),
            frozenset(stop_ids),
            _random(self._seed, key),
            asyncio.get_running_loop().create_future(),
            said,
        )
        self._queue.append(call)
        self._wake()
        try:
            await call.done
        finally:
            self._release(call)
        return call

    def load(self, weights: dict[str, Tensor], version: int) -> None:
        """Go on with other weights. Answers under way keep their keys; prompts under way start again.

        Raises ConfigError, and keeps the old weights, where the new ones do not fit.
        """
        self._policy.take(weights)
        self.version = version
        self._stale = {call.slot for call in self._drawing}
        for slot in range(self._slots):
            if slot not in self._stale:
                self._cache.truncate(slot, 0)

    def score(self, ids: Sequence[int]) -> Scored:
        """What the present weights say of these ids."""
        with torch.inference_mode():
            return score(self._policy, ids)

    def pause(self) -> None:
        """Hold every generation where it is."""
        self._paused = True
        self._wake()

    def resume(self) -> None:
        self._paused = False
        self._wake()

    async def run(self) -> None:
        """Work while there is any, letting others run between turns."""
        while True:
            await self._awake.wait()
            with torch.inference_mode():
                self._turn()
            self._wake()
            await asyncio.sleep(0)

    def _wake(self) -> None:
        if self.busy and not self._paused:
            self._awake.set()
        else:
            self._awake.clear()

    def _turn(self) -> None:
        while self._queue and self._idle:
            self._admit(self._queue.popleft())
        self._fill()
        if self._drawing:
            self._drawing.sort(key=lambda call: call.slot)
            logits = self._forward.step([call.slot for call in self._drawing], [call.ids[-1] for call in self._drawing])
            self._draw(self._drawing, logits)

    def _admit(self, call: Generating) -> None:
        """Give a call a slot: the one whose tokens it continues, else the longest unused."""
        call.slot = self._idle[0]
        if self._deterministic:
            kept = 0
        else:
            held = {slot: self._cache.length(slot) for slot in self._idle}
            shared = {slot: self._cache.common(slot, call.prompt[:-1]) for slot in self._idle}
            continued = [slot for slot in self._idle if shared[slot] == held[slot] > 0]
            call.slot = max(continued, key=lambda slot: held[slot], default=call.slot)
            kept = shared[call.slot]
        self._idle.remove(call.slot)
        self._cache.truncate(call.slot, kept)
        self._filling.append(call)

    def _fill(self) -> None:
        """Compute up to a chunk of prompt tokens, oldest calls first."""
        budget = self._prefill_chunk
        for call in list(self._filling):
            if budget <= 0:
                return
            if not self._deterministic:
                if self._will_share(call):
                    continue
                self._take_over(call)
            start = self._cache.length(call.slot)
            room = self._prefill_chunk if self._deterministic else budget
            ids = call.prompt[start : start + room]
            logits = self._forward.chunk(call.slot, ids)
            budget -= len(ids)
            if start + len(ids) == len(call.prompt):
                self._filling.remove(call)
                self._drawing.append(call)
                self._draw([call], logits)

    def _will_share(self, call: Generating) -> bool:
        """Whether an older call is about to compute a beginning of this prompt."""
        need = self._cache.length(call.slot) + WORTH_COPYING
        older = self._filling[: self._filling.index(call)]
        return any(common_length(call.prompt[:-1], other.prompt) >= need for other in older)

    def _take_over(self, call: Generating) -> None:
        """Copy the longest beginning of the prompt that another slot holds."""
        fresh = [slot for slot in range(self._slots) if slot != call.slot and slot not in self._stale]
        shared = {slot: self._cache.common(slot, call.prompt[:-1]) for slot in fresh}
        source = max(fresh, key=lambda slot: shared[slot], default=call.slot)
        if shared.get(source, 0) >= self._cache.length(call.slot) + WORTH_COPYING:
            self._cache.copy(source, call.slot, shared[source])

    def _draw(self, calls: Sequence[Generating], logits: Tensor) -> None:
        """Draw the next id of each call from its row of logits [N, V]."""
        temperature = [call.temperature for call in calls]
        chance = [call.random.random() for call in calls]
        ids, logprobs = sample(logits, temperature, chance, [call.next_said for call in calls])
        for call, token, logprob in zip(list(calls), ids, logprobs, strict=True):
            call.ids.append(token)
            call.logprobs.append(logprob)
            call.versions.append(self.version)
            if token in call.stop_ids or len(call.ids) >= call.max_tokens:
                call.experts = self._cache.chosen(call.slot)
                self._release(call)
                if not call.done.done():
                    call.done.set_result(None)

    def _release(self, call: Generating) -> None:
        """Take a call out, wherever it is; its slot keeps its tokens for those who continue them."""
        for calls in (self._queue, self._filling, self._drawing):
            if call in calls:
                calls.remove(call)
        if call.slot < 0:
            return
        if call.slot in self._stale:
            self._stale.remove(call.slot)
            self._cache.truncate(call.slot, 0)
        self._idle.append(call.slot)
        call.slot = -1


def _random(seed: int, key: str) -> np.random.Generator:
    """One stream of randomness per call, whoever else is there."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
