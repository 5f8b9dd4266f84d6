"""Prompt ids -> sampled ids with their logprobs; the engine's faults are absorbed while the harness waits."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence

import numpy as np

from clawexp.engine.client import EngineClient, Generation
from clawexp.errors import EngineError, EngineRefusal
from clawexp.records import LOGPROB_ROUNDING

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0


class Sampler:
    """Asks the engine, again and again where it fails: a harness that saw the fault might end, or do something else."""

    def __init__(self, engine: EngineClient, stop_ids: Sequence[int], patience_s: float) -> None:
        self._engine = engine
        self._stop_ids = tuple(stop_ids)
        self._patience_s = patience_s

    async def sample(self, ids: np.ndarray, temperature: float, max_tokens: int, key: str) -> Generation:
        """One checked generation for a prompt, int32 [prompt].

        Raises EngineError where it still fails after `patience_s`, and at once where another try would give the same:
        the engine refuses the request, or its answer cannot be trusted.
        """
        begin, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                generation = await self._engine.generate(
                    ids, temperature=temperature, max_tokens=max_tokens, stop_ids=self._stop_ids, key=key
                )
            except EngineRefusal:
                raise
            except EngineError as error:
                if time.monotonic() - begin + pause > self._patience_s:
                    raise
                log.warning("call %s: the engine failed (%s); asking again", key, error)
            else:
                self._check(generation, max_tokens, key)
                return generation
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _check(self, generation: Generation, max_tokens: int, key: str) -> None:
        """What the engine's client leaves open. Raises EngineError."""
        faults = []
        if len(generation.ids) > max_tokens:
            faults.append(f"{len(generation.ids)} ids where {max_tokens} were the limit")
        if not all(math.isfinite(logprob) and logprob <= LOGPROB_ROUNDING for logprob in generation.logprobs):
            faults.append("logprobs that are not logarithms of probabilities")
        if generation.finish_reason == "stop" and generation.ids[-1] not in self._stop_ids:
            faults.append("a stop without its stop token, which then is not trained")
        if faults:
            raise EngineError(f"the engine's answer to call {key} has {' and '.join(faults)}; it is not recorded")
