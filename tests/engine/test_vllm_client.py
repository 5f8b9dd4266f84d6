"""What is refused of vLLM's answers, over a server that gives wrong ones. The right ones are in test_vllm.py."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from clawexp.engine.vllm_client import VllmClient
from clawexp.errors import EngineError
from clawexp.model.checkpoint import FILES

LOAD = {"/pause": {}, "/collective_rpc": {}, "/reset_prefix_cache": {"success": True}, "/update_weight_version": {}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What looks like one."""
    for name in FILES:
        (tmp_path / name).touch()
    return tmp_path


@asynccontextmanager
async def answering(answers: Mapping[str, Any], asked: list[str] | None = None) -> AsyncIterator[VllmClient]:
    """A client of a server with an answer for each path; one that is callable is given the request's body."""

    async def handle(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        if asked is not None:
            asked.append(request.path_qs)
        if request.path not in answers:
            return web.Response(status=500, text="no such thing")
        answer = answers[request.path]
        return web.json_response(answer(body) if callable(answer) else answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with VllmClient(url, "key", 5, ("load_checkpoint", "path")) as client:
            yield client
    finally:
        await runner.cleanup()


async def test_weights_are_changed_while_all_is_held_and_no_old_key_is_kept(checkpoint: Path) -> None:
    asked: list[str] = []
    async with answering({**LOAD, "/resume": {}}, asked) as client:
        await client.load(checkpoint, 3)
    assert asked == [
        "/pause?mode=keep",
        "/collective_rpc",
        "/reset_prefix_cache?reset_running_requests=true",
        "/update_weight_version",
        "/resume",
    ]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"/reset_prefix_cache": {"success": False}}, "kept keys of its old weights"),
        ({"/collective_rpc": ["?"]}, "/collective_rpc"),
    ],
)
async def test_after_a_load_that_failed_nothing_is_sampled(fault: dict, message: str, checkpoint: Path) -> None:
    asked: list[str] = []
    async with answering({**LOAD, "/resume": {}, **fault}, asked) as client:
        with pytest.raises(EngineError, match=message):
            await client.load(checkpoint, 3)
    assert "/resume" not in asked


@pytest.mark.parametrize(
    "places", [None, [None], [None, {"5": {"logprob": -1.0}}, {}], [None, {"6": {"logprob": -1.0}}]]
)
async def test_a_score_that_is_not_of_the_prompt_is_refused(places: list | None) -> None:
    async with answering({"/inference/v1/generate": {"prompt_logprobs": places}}) as client:
        with pytest.raises(EngineError, match="did not score 2 ids"):
            await client.score([4, 5])


async def test_weights_without_a_numbered_version_are_an_error() -> None:
    async with answering({"/weight_info": {"weight_version": "default"}}) as client:
        with pytest.raises(EngineError, match="names no version"):
            await client.health()


@pytest.mark.parametrize(("reported", "refused"), [(-1.5, True), (-0.2, False)])
async def test_logprobs_that_leave_out_the_temperature_are_refused(reported: float, refused: bool) -> None:
    def generate(body: dict[str, Any]) -> dict[str, Any]:
        """A model whose ids all have logprob -1.5 at temperature 1."""
        if "prompt_logprobs" in body["sampling_params"]:
            told = [None, *({str(token): {"logprob": -1.5}} for token in body["token_ids"][1:])]
            return {"prompt_logprobs": told, "choices": [{"token_ids": [1]}]}
        choice = {
            "token_ids": [7, 8],
            "logprobs": {"content": [{"logprob": reported}] * 2},
            "finish_reason": "length",
            "weight_versions": [{"version": "0", "start": 0, "end": 2}],
        }
        return {"choices": [choice]}

    async with answering({"/inference/v1/generate": generate}) as client:
        if refused:
            with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
                await client.refuse_raw_logprobs()
        else:
            await client.refuse_raw_logprobs()
