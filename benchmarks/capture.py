"""What the model boundary adds to a call: latency and CPU, against asking the engine directly.

    python benchmarks/capture.py

One run, no warm-up beyond the first call of each rollout. The engine is a stub in a process of its own that waits
`--engine-ms` and answers with fixed ids; baseline `direct` posts the same prompts to it by the engine's own contract.
Every rollout is a conversation that grows by one tool call and one result per call.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import tokenizers
from aiohttp import web
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from clawexp.capture.boundary import boundary
from clawexp.capture.tokenizer import Tokenizer
from clawexp.protocols import EngineHandle
from clawexp.spec import CaptureOptions, Model

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TEXT = 'Reading.\n<tool_call>\n{"name": "read", "arguments": {"path": "notes.txt"}}\n</tool_call><|im_end|>'
SYSTEM, RESULT = "You work with files. " * 200, "x = 4\n" * 50
"""4,200 and 300 characters, and as many tokens: the vocabulary is bytes."""
CALLS = 20


class NoEngine:
    """Fills a model's engine field: the stub is reached by its URL."""

    def serve(self, model: Model, seed: int, folder: Path) -> AbstractAsyncContextManager[EngineHandle]:
        raise NotImplementedError


def write_checkpoint(folder: Path) -> None:
    """A vocabulary of bytes and Qwen3's special tokens, and empty files for the rest."""
    alphabet = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")


async def serve_stub(delay_s: float, ids: Sequence[int]) -> None:
    """The engine's contract; prints its port and serves until it is killed."""
    choice = {"token_ids": ids, "logprobs": {"content": [{"logprob": -0.5}] * len(ids)}, "finish_reason": "stop"}
    answer = {"choices": [choice | {"weight_versions": [{"version": 0, "start": 0, "end": len(ids)}]}]}

    async def generate(request: web.Request) -> web.Response:
        await request.json()
        await asyncio.sleep(delay_s)
        return web.json_response(answer)

    app = web.Application(client_max_size=2**26)
    app.add_routes([web.post("/inference/v1/generate", generate)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(site.name, flush=True)
    await asyncio.Event().wait()


@asynccontextmanager
async def stub_process(delay_s: float, ids: Sequence[int]) -> AsyncIterator[str]:
    """The stub's URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--stub", json.dumps([delay_s, list(ids)]), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def timed(session: aiohttp.ClientSession, url: str, body: Any, key: str) -> tuple[float, Any]:
    """Milliseconds of one request, and its answer."""
    begin = time.perf_counter()
    async with session.post(url, json=body, headers={"authorization": f"Bearer {key}"}) as response:
        answer = await response.json()
    assert response.status == 200, answer
    return 1000 * (time.perf_counter() - begin), answer


async def converse(session: aiohttp.ClientSession, url: str, key: str) -> list[float]:
    """One rollout through the boundary."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Go."}]
    latencies = []
    for _ in range(CALLS):
        latency, answer = await timed(session, f"{url}/v1/chat/completions", {"messages": messages}, key)
        latencies.append(latency)
        message = answer["choices"][0]["message"]
        results = [{"role": "tool", "tool_call_id": c["id"], "content": RESULT} for c in message["tool_calls"]]
        messages = [*messages, message, *results]
    return latencies[1:]


async def repeat(session: aiohttp.ClientSession, url: str, prompts: Sequence[Sequence[int]]) -> list[float]:
    """One rollout's prompts, sent to the engine itself."""
    latencies = []
    for prompt in prompts:
        body = {"request_id": "x", "token_ids": list(prompt), "sampling_params": {"temperature": 1.0}}
        latencies.append((await timed(session, f"{url}/inference/v1/generate", body, ""))[0])
    return latencies[1:]


async def compare(rollouts: int, delay_s: float, folder: Path) -> None:
    """One line: latency direct and captured, and the CPU of the capture process."""
    ids = Tokenizer(folder).encode(TEXT)
    options = CaptureOptions(
        temperature=1.0,
        max_calls=CALLS,
        engine_retries=0,
        engine_timeout_s=60,
        fsync=True,
        workers=1,
        allow_hosts=(),
        cache=False,
        keep_raw=False,
        rules={},
    )
    model = Model(
        name="bench",
        path=str(folder),
        rendering="qwen3",
        context=65536,
        max_tokens=256,
        source=None,
        engine=NoEngine(),
    )
    run = folder / f"run-{rollouts}"
    async with (
        stub_process(delay_s, ids) as engine,
        boundary(options, model, engine, "", run) as live,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        keys = [await live.open(f"r{number}", seed=0) for number in range(rollouts)]
        before = (await live.stats())[0]["cpu_s"]
        async with asyncio.TaskGroup() as group:
            url = f"http://127.0.0.1:{live.door('r0').port}"
            tasks = [group.create_task(converse(session, url, key)) for key in keys]
        (stats,) = await live.stats()
        captured = sorted(latency for task in tasks for latency in task.result())
        prompts = [call.prompt_ids for call in (await live.close("r0")).calls]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(repeat(session, engine, prompts)) for _ in range(rollouts)]
        direct = sorted(latency for task in tasks for latency in task.result())
    cpu_ms = 1000 * (stats["cpu_s"] - before) / (rollouts * CALLS)
    print(
        f"{rollouts:3d} rollouts, prompts of {len(prompts[0])} to {len(prompts[-1])} tokens: "
        f"direct P50 {percentile(direct, 50):.1f} P99 {percentile(direct, 99):.1f} ms, "
        f"captured P50 {percentile(captured, 50):.1f} P99 {percentile(captured, 99):.1f} ms; "
        f"capture process {cpu_ms:.2f} ms CPU a call, peak {stats['peak_mb']} MB"
    )


def percentile(ordered: Sequence[float], share: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-ms", type=float, default=200.0)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--stub", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stub:
        asyncio.run(serve_stub(*json.loads(arguments.stub)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        for rollouts in arguments.rollouts:
            asyncio.run(compare(rollouts, arguments.engine_ms / 1000, Path(folder)))


if __name__ == "__main__":
    main()
