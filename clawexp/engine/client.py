"""The engine URL contract, from the asking side. No torch.

Token ids go in, sampled ids with their logprobs and weight versions come out: the shape of vLLM's
`POST /inference/v1/generate`, with health, load and score beside it.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from clawexp.array_text import array_of
from clawexp.errors import EngineError, EngineRefusal
from clawexp.quick_json import loads
from clawexp.records import Scored, Span

IDLE_S = 2.0
"""An idle connection is given up after this, before any server does (vLLM: 5 s): a request on one that the server is
just closing would be lost."""
BUSY = (408, 425, 429)
"""Of the statuses that blame the request, those that pass."""
NO_LOGPROB = -9999.0
"""What vLLM writes where it has no logprob, or one that is not a number."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What an engine sampled. `Generation(ids=(3, 9), logprobs=(-0.1, -2.3), finish_reason="stop", ...)`"""

    ids: tuple[int, ...]
    """Ends with the stop id where one was sampled."""
    logprobs: tuple[float, ...]
    """Of each id under the sampling distribution."""
    finish_reason: Literal["stop", "length"]
    spans: tuple[Span, ...]
    """Cover the ids, in order."""
    experts: NDArray[np.int16] | None = field(default=None, compare=False)
    """Chosen for each token of prompt and answer but the last, [prompt + ids - 1, layers, k]; None where the engine
    does not tell."""


class EngineClient:
    """A connection to one engine; `async with` opens and closes it. Every fault is an EngineError; an EngineRefusal
    where another try would end alike."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        self.url, self.key = url, key
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def generate(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        temperature: float,
        max_tokens: int,
        stop_ids: Sequence[int],
        key: str,
    ) -> Generation:
        """Sample an answer to a prompt, int [prompt].

        `key` names the call; an embedded engine draws its randomness from it. Cancelling closes the connection, which
        ends the generation in the engine.
        """
        answer = await self._ask(
            "POST",
            "/inference/v1/generate",
            {
                "request_id": key,
                "token_ids": np.ascontiguousarray(ids, dtype=np.int32),
                "sampling_params": {
                    "temperature": temperature,
                    "max_tokens": max_tokens,
                    "stop_token_ids": list(stop_ids),
                    "ignore_eos": True,  # the stop ids alone decide, whatever the checkpoint names beside them
                    "logprobs": 0,
                },
            },
        )
        try:
            return _generation(answer, len(ids))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"the engine at {self.url} broke its contract: {error!r} in {answer!r:.500}") from error

    async def load(self, path: Path, version: int) -> None:
        """Take the weights of a checkpoint folder; what is sampled from then on is of this version."""
        await self._ask("POST", "/load", {"path": str(path), "version": version})

    async def score(self, ids: Sequence[int]) -> Scored:
        """What the present weights say of these ids."""
        answer = await self._ask("POST", "/score", {"token_ids": list(ids)})
        try:
            logprobs = tuple(float(logprob) for logprob in answer["logprobs"])
            return scored(ids, logprobs, answer.get("routed_experts"))
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the engine at {self.url} scored {len(ids)} ids with {answer!r:.200}") from error

    async def pause(self) -> None:
        """Hold every generation where it is."""
        await self._ask("POST", "/pause", {})

    async def resume(self) -> None:
        await self._ask("POST", "/resume", {})

    async def health(self) -> int:
        """The version of the weights it serves."""
        answer = await self._ask("GET", "/health", None)
        version = answer.get("version")
        if not isinstance(version, int):
            raise EngineError(f"the engine at {self.url} names no version: {answer!r:.200}")
        return version

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            async with self._session.request(method, self.url + path, data=_json(body)) as response:
                content = await response.read()
                if response.status != 200:
                    text = content[:500].decode(errors="replace")
                    refused = 400 <= response.status < 500 and response.status not in BUSY
                    kind = EngineRefusal if refused else EngineError
                    raise kind(f"the engine answered {path} with {response.status}: {text}")
                answer = loads(content)
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            cause = f"({type(error).__name__}: {error})"
            what = f"within {self._timeout_s:g} s" if isinstance(error, asyncio.TimeoutError) else cause
            raise EngineError(f"the engine at {self.url} did not answer {path} {what}") from error
        if not isinstance(answer, dict):
            raise EngineError(f"the engine answered {path} with {answer!r:.200}")
        return answer


def scored(ids: Sequence[int], logprobs: tuple[float, ...], experts: str | None) -> Scored:
    """Raises ValueError where there are not enough of them, or too many logprobs."""
    told = None if experts is None else array_of(experts)[: len(ids) - 1]
    if len(logprobs) != len(ids) - 1 or (told is not None and len(told) != len(logprobs)):
        raise ValueError(f"{len(ids)} ids")
    return Scored(logprobs=logprobs, experts=told)


def _json(body: Mapping[str, Any] | None) -> bytes | None:
    """A long prompt takes the standard library's encoder milliseconds, in which nobody else is served."""
    return None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _generation(answer: dict[str, Any], prompt: int) -> Generation:
    choice = answer["choices"][0]
    ids = tuple(int(token) for token in choice["token_ids"])
    logprobs = tuple(float(entry["logprob"]) for entry in choice["logprobs"]["content"])
    spans = tuple(
        Span(version=int(span["version"]), start=int(span["start"]), end=int(span["end"]))
        for span in choice["weight_versions"]
    )
    if not ids or len(logprobs) != len(ids):
        raise ValueError(f"{len(ids)} ids with {len(logprobs)} logprobs")
    if min(logprobs) <= NO_LOGPROB:
        raise ValueError(f"an id without its logprob, number {logprobs.index(min(logprobs))}")
    edges = [0, *(span.end for span in spans)]
    covered = all(span.start == start for span, start in itertools.zip_longest(spans, edges[:-1]))
    if not covered or edges[-1] != len(ids):
        raise ValueError(f"versions do not cover {len(ids)} ids")
    reason = choice["finish_reason"]
    if reason not in ("stop", "length"):
        raise ValueError(f"finish reason {reason!r}")
    experts = None if choice.get("routed_experts") is None else array_of(choice["routed_experts"])
    if experts is not None and (experts.ndim != 3 or len(experts) != prompt + len(ids) - 1):
        raise ValueError(f"experts {list(experts.shape)} of {prompt} ids and {len(ids)} sampled ones")
    return Generation(ids=ids, logprobs=logprobs, finish_reason=reason, spans=spans, experts=experts)
