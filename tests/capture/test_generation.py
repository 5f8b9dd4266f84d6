import math
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from stub_engine import StubEngine, serve_stub

from clawexp.capture.generation import Sampler
from clawexp.capture.tokenizer import Tokenizer
from clawexp.engine.client import EngineClient
from clawexp.errors import EngineError, EngineRefusal

PROMPT = np.array([1, 2], dtype=np.int32)


@pytest_asyncio.fixture
async def engine(tokenizer: Tokenizer) -> AsyncIterator[StubEngine]:
    async with serve_stub(tokenizer) as stub:
        yield stub


@pytest_asyncio.fixture
async def sampler(engine: StubEngine, tokenizer: Tokenizer) -> AsyncIterator[Sampler]:
    async with EngineClient(engine.url, "secret", 10.0) as client:
        yield Sampler(client, [tokenizer.encode("<|im_end|>")[0]], patience_s=0.7)


async def test_a_fault_is_tried_again_with_the_same_key(engine: StubEngine, sampler: Sampler) -> None:
    engine.failures = 1
    generation = await sampler.sample(PROMPT, 1.0, 9, "3/r/0")
    assert len(generation.ids) == len(generation.logprobs)
    assert [request["request_id"] for request in engine.requests] == ["3/r/0", "3/r/0"]


async def test_an_engine_that_stays_down_is_an_engine_error(engine: StubEngine, sampler: Sampler) -> None:
    engine.failures = 100
    with pytest.raises(EngineError):
        await sampler.sample(PROMPT, 1.0, 9, "3/r/0")
    assert len(engine.requests) == 2


async def test_what_the_engine_refuses_is_not_asked_again(engine: StubEngine, sampler: Sampler) -> None:
    engine.failures, engine.status = 100, 400
    with pytest.raises(EngineRefusal, match="400"):
        await sampler.sample(PROMPT, 1.0, 9, "3/r/0")
    assert len(engine.requests) == 1


async def test_more_ids_than_asked_for_are_refused(engine: StubEngine, sampler: Sampler) -> None:
    engine.say("the weather is fine")
    with pytest.raises(EngineError, match="limit"):
        await sampler.sample(PROMPT, 1.0, 2, "k")


@pytest.mark.parametrize("logprob", [0.5, math.nan])
async def test_logprobs_of_no_probability_are_refused(engine: StubEngine, sampler: Sampler, logprob: float) -> None:
    engine.say("", logprobs={"content": [{"logprob": logprob}]})
    with pytest.raises(EngineError, match="logarithms"):
        await sampler.sample(PROMPT, 1.0, 9, "k")


async def test_an_id_without_its_logprob_is_asked_for_again(engine: StubEngine, sampler: Sampler) -> None:
    engine.say("", logprobs={"content": [{"logprob": -math.inf}]})
    generation = await sampler.sample(PROMPT, 1.0, 9, "k")
    assert all(math.isfinite(logprob) for logprob in generation.logprobs)
    assert len(engine.requests) == 2


async def test_an_engine_that_swallows_the_stop_token_is_refused(engine: StubEngine, sampler: Sampler) -> None:
    engine.say("ok", stop=False, finish_reason="stop")
    with pytest.raises(EngineError, match="stop token"):
        await sampler.sample(PROMPT, 1.0, 9, "k")
