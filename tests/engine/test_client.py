import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from clawexp.array_text import text_of
from clawexp.engine.client import EngineClient
from clawexp.errors import EngineError
from clawexp.records import Span

GOOD: dict[str, Any] = {
    "request_id": "a",
    "choices": [
        {
            "index": 0,
            "token_ids": [3, 9],
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1}]},
            "finish_reason": "stop",
            "weight_versions": [{"version": 1, "start": 0, "end": 1}, {"version": "2", "start": 1, "end": 2}],
        }
    ],
}


@asynccontextmanager
async def answering(answer: Callable[[], web.Response], delay_s: float = 0) -> AsyncIterator[EngineClient]:
    """A client of an engine that answers everything so."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(delay_s)
        return answer()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with EngineClient(f"http://127.0.0.1:{runner.addresses[0][1]}", "key", 5) as client:
            yield client
    finally:
        await runner.cleanup()


async def generate(client: EngineClient):
    return await client.generate([1, 2], temperature=1.0, max_tokens=4, stop_ids=[9], key="a")


async def test_an_answer_becomes_a_frozen_record():
    async with answering(lambda: web.json_response(GOOD)) as client:
        got = await generate(client)
    assert (got.ids, got.logprobs, got.finish_reason) == ((3, 9), (-0.5, -1.0), "stop")
    assert got.experts is None
    assert got.spans == (Span(version=1, start=0, end=1), Span(version=2, start=1, end=2))


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": {"content": [{"logprob": -0.5}]}},
        {"logprobs": {"content": [{"logprob": -0.5}, {"logprob": -9999.0}]}},
        {"logprobs": None},
        {"token_ids": [], "logprobs": {"content": []}},
        {"finish_reason": "banana"},
        {"weight_versions": None},
        {"weight_versions": []},
        {"weight_versions": [{"version": "default", "start": 0, "end": 2}]},
        {"weight_versions": [{"version": 1, "start": 0, "end": 1}]},
        {"weight_versions": [{"version": 1, "start": 1, "end": 2}]},
        {"routed_experts": "!"},
        {"routed_experts": text_of(np.zeros((2, 2, 2), np.int16))},
        {"routed_experts": text_of(np.zeros((3, 2), np.int16))},
    ],
)
async def test_an_answer_that_is_not_aligned_is_an_error_that_shows_it(change):
    async with answering(lambda: web.json_response({"choices": [GOOD["choices"][0] | change]})) as client:
        with pytest.raises(EngineError, match="broke its contract"):
            await generate(client)


async def test_an_answer_without_a_choice_is_an_error_that_shows_it():
    async with answering(lambda: web.json_response({"choices": []})) as client:
        with pytest.raises(EngineError, match="broke its contract"):
            await generate(client)


async def test_what_the_engine_said_is_in_the_error():
    async with answering(lambda: web.Response(status=503, text="out of slots")) as client:
        with pytest.raises(EngineError, match="503: out of slots"):
            await generate(client)
    async with answering(lambda: web.Response(text="<html>")) as client:
        with pytest.raises(EngineError, match="/score"):
            await client.score([1, 2])
    async with answering(lambda: web.json_response({"logprobs": [-1.0]})) as client:
        with pytest.raises(EngineError, match="scored 3 ids"):
            await client.score([1, 2, 3])


async def test_an_engine_that_is_not_there_or_too_slow_is_an_engine_error():
    async with EngineClient("http://127.0.0.1:9", "key", 5) as client:
        with pytest.raises(EngineError, match="did not answer /health"):
            await client.health()
    async with (
        answering(lambda: web.json_response({}), delay_s=1) as client,
        EngineClient(client.url, "key", 0.1) as hasty,
    ):
        with pytest.raises(EngineError, match=r"within 0\.1 s"):
            await hasty.health()
