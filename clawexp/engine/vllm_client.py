"""The engine URL contract over vLLM's server: its generation has the contract's shape, the rest is translated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clawexp.engine.client import EngineClient, scored
from clawexp.errors import EngineError
from clawexp.model.checkpoint import FILES
from clawexp.records import Scored

SHARP = 0.25
"""A temperature at which processed logprobs differ clearly from raw ones."""
SAME = 0.02
CHECKED_TOKENS = 8


class VllmClient(EngineClient):
    """A connection to vLLM, started with `VLLM_SERVER_DEV_MODE=1` for all but generation."""

    def __init__(self, url: str, key: str, timeout_s: float, load: tuple[str, str]) -> None:
        super().__init__(url, key, timeout_s)
        self._load_method, self._load_argument = load
        """Of its workers, called with the path of a checkpoint folder."""

    async def load(self, path: Path, version: int) -> None:
        """Take the weights of a checkpoint folder. Where that fails, vLLM stays paused: its weights may be torn."""
        missing = [name for name in FILES if not (path / name).is_file()]
        if missing:
            raise EngineError(f"{path} is no checkpoint: it has no {' and no '.join(missing)}")
        await self.pause()
        arguments = {self._load_argument: str(path.absolute())}
        await self._ask("POST", "/collective_rpc", {"method": self._load_method, "kwargs": arguments})
        # Answers under way are computed anew from their ids, so that no key of the old weights is left to share.
        answer = await self._ask("POST", "/reset_prefix_cache?reset_running_requests=true", {})
        if answer.get("success") is not True:
            raise EngineError(f"the engine at {self.url} kept keys of its old weights: {answer!r:.200}")
        await self.set_version(version)
        await self.resume()

    async def set_version(self, version: int) -> None:
        """Call the weights it serves this version."""
        await self._ask("POST", "/update_weight_version", {"new_version": str(version)})

    async def score(self, ids: Sequence[int]) -> Scored:
        """What the present weights say of these ids."""
        sampling = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        answer = await self._ask(
            "POST", "/inference/v1/generate", {"token_ids": list(ids), "sampling_params": sampling}
        )
        try:
            return scored(ids, _prompt_logprobs(answer, ids), answer["choices"][0].get("routed_experts"))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"the engine at {self.url} did not score {len(ids)} ids: {answer!r:.500}") from error

    async def pause(self) -> None:
        """Hold every generation where it is."""
        await self._ask("POST", "/pause?mode=keep", {})

    async def health(self) -> int:
        """The version of the weights it serves."""
        answer = await self._ask("GET", "/weight_info", None)
        try:
            return int(answer["weight_version"])
        except (KeyError, ValueError) as error:
            raise EngineError(f"the engine at {self.url} names no version: {answer!r:.200}") from error

    async def refuse_raw_logprobs(self) -> None:
        """Raise EngineError where it reports logprobs of another distribution than the one it samples from."""
        prompt = [0, 1]
        sampled = await self.generate(
            prompt, temperature=SHARP, max_tokens=CHECKED_TOKENS, stop_ids=[], key="clawexp-check"
        )
        raw = (await self.score([*prompt, *sampled.ids])).logprobs[len(prompt) - 1 :]
        if all(abs(a - b) < SAME for a, b in zip(raw, sampled.logprobs, strict=True)):
            raise EngineError(
                f"the engine at {self.url} reports logprobs that leave out the temperature; "
                "start it with --logprobs-mode processed_logprobs"
            )


def _prompt_logprobs(answer: dict[str, Any], ids: Sequence[int]) -> tuple[float, ...]:
    """vLLM lists for each id of the prompt but the first the logprobs of some ids there, its own among them."""
    places = answer["prompt_logprobs"]
    if len(places) != len(ids):
        raise ValueError(f"{len(places)} places")
    return tuple(float(place[str(token)]["logprob"]) for place, token in zip(places[1:], ids[1:], strict=True))
