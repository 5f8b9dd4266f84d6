"""Prompt ids -> sampled ids with their logprobs; the engine's faults are absorbed while the harness waits."""

import asyncio
import logging
import math
from collections.abc import Sequence

import numpy as np

from clawexp.engine.client import EngineClient, Generation
from clawexp.errors import CaptureError, EngineError
from clawexp.records import LOGPROB_ROUNDING

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0


class Sampler:
    """Asks the engine, again where it fails."""

    def __init__(self, engine: EngineClient, stop_ids: Sequence[int], retries: int) -> None:
        self._engine = engine
        self._stop_ids = tuple(stop_ids)
        self._retries = retries

    async def sample(self, ids: np.ndarray, temperature: float, max_tokens: int, key: str) -> Generation:
        """One checked generation for a prompt, int32 [prompt].

        Raises EngineError once `retries` further tries have failed too, CaptureError at once where the answer
        came but cannot be trusted: another try would give the same.
        """
        for failures in range(self._retries):
            try:
                return await self._once(ids, temperature, max_tokens, key)
            except EngineError as error:
                log.warning("call %s: the engine failed (%s); asking again", key, error)
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**failures, LONGEST_PAUSE_S))
        return await self._once(ids, temperature, max_tokens, key)

    async def _once(self, ids: np.ndarray, temperature: float, max_tokens: int, key: str) -> Generation:
        generation = await self._engine.generate(
            ids, temperature=temperature, max_tokens=max_tokens, stop_ids=self._stop_ids, key=key
        )
        self._check(generation, max_tokens, key)
        return generation

    def _check(self, generation: Generation, max_tokens: int, key: str) -> None:
        """What the engine's client leaves open. Raises CaptureError."""
        faults = []
        if len(generation.ids) > max_tokens:
            faults.append(f"{len(generation.ids)} ids where {max_tokens} were the limit")
        if not all(math.isfinite(logprob) and logprob <= LOGPROB_ROUNDING for logprob in generation.logprobs):
            faults.append("logprobs that are not logarithms of probabilities")
        if generation.finish_reason == "stop" and generation.ids[-1] not in self._stop_ids:
            faults.append("a stop without its stop token, which then is not trained")
        if faults:
            raise CaptureError(f"the engine's answer to call {key} has {' and '.join(faults)}; it is not recorded")
