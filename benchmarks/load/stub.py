"""An engine that samples nothing, in a process of its own: `python benchmarks/load/stub.py CHECKPOINT`.

It speaks clawexp's engine contract, and for products that stand before a provider OpenAI's chat completions and
Anthropic's messages, streamed and not. Every answer is a sentence and a tool call, and says how many seconds of it were
the stub's own: what a call took beyond that was added on the way, whatever the way.

It prints its URL. `POST /delay [least, most]` sets how long it waits, uniformly drawn; at first it answers at once.
"""

import asyncio
import random
import re
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import tokenizers
from aiohttp import web

MODEL = "stub"
TOOK = re.compile(r"took (\d+\.\d+) s")
REST = (
    " for this answer. The module defines the parser and its actions; the error that the test shows is raised where "
    "an option is given twice, so I look at the part that collects the arguments before I change anything, and "
    "then at the caller that sorts them by their position."
)
PATHS = ("argparse.py", "subprocess.py", "typing.py", "tarfile.py", "datetime.py", "inspect.py")
PIECES = 16
"""Of the text in a stream: about so many events."""


class Stub:
    """Answers at random moments."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._delay = (0.0, 0.0)
        self._rng = random.Random(0)
        self._tails = {path: self._ids(f"{REST}\n<tool_call>\n{_call(path)}\n</tool_call><|im_end|>") for path in PATHS}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/inference/v1/generate", self.generate),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/messages", self.messages),
            web.get("/v1/models", self.models),
            web.post("/delay", self.set_delay),
        ]

    async def set_delay(self, request: web.Request) -> web.Response:
        least, most = await request.json()
        self._delay = (least, most)
        return web.Response()

    async def models(self, _request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 131072}]})

    async def _wait(self, request: web.Request) -> tuple[Any, str, str]:
        """What is asked, the text of the answer up to where it is always the same, and the path of its tool call."""
        begin = time.perf_counter()
        asked = orjson.loads(await request.read())
        least, most = self._delay
        if most:
            await asyncio.sleep(self._rng.uniform(least, most))
        path = self._rng.choice(PATHS)
        return asked, f"This took {time.perf_counter() - begin:.6f} s", path

    async def generate(self, request: web.Request) -> web.Response:
        _, head, path = await self._wait(request)
        ids = self._ids(head) + self._tails[path]
        choice = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": [{"token": f"token_id:{i}", "logprob": self._logprob()} for i in ids]},
            "finish_reason": "stop",
            "weight_versions": [{"version": 0, "start": 0, "end": len(ids)}],
        }
        return _json({"request_id": "stub", "choices": [choice]})

    def _ids(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def _logprob(self) -> float:
        """As many digits as a float32 of an engine has."""
        return struct.unpack("f", struct.pack("f", -self._rng.expovariate(4.0)))[0]

    async def chat(self, request: web.Request) -> web.Response:
        asked, head, path = await self._wait(request)
        function = {"name": "read", "arguments": f'{{"path":"{path}"}}'}
        call = {"id": f"call_{self._rng.getrandbits(64):016x}", "type": "function", "function": function}
        about = {"id": "chatcmpl-stub", "created": int(time.time()), "model": MODEL}
        usage = {"prompt_tokens": 5000, "completion_tokens": 120, "total_tokens": 5120}
        if asked.get("stream"):
            chunk = {**about, "object": "chat.completion.chunk"}
            deltas: list[Any] = [{"role": "assistant", "content": ""}, {"tool_calls": [{"index": 0, **call}]}]
            deltas[1:1] = [{"content": piece} for piece in _pieces(head + REST)]
            events = [{**chunk, "choices": [_choice(delta=delta)]} for delta in deltas]
            events.append({**chunk, "choices": [_choice(delta={}, finish_reason="tool_calls")]})
            events.append({**chunk, "choices": [], "usage": usage})
            return _stream([b"data: " + orjson.dumps(event) for event in events] + [b"data: [DONE]"])
        message = {"role": "assistant", "content": head + REST, "tool_calls": [call]}
        choices = [_choice(message=message, finish_reason="tool_calls")]
        return _json({**about, "object": "chat.completion", "choices": choices, "usage": usage})

    async def messages(self, request: web.Request) -> web.Response:
        asked, head, path = await self._wait(request)
        call = {"type": "tool_use", "id": f"toolu_{self._rng.getrandbits(64):016x}", "name": "read"}
        about = {"id": "msg_stub", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
        usage = {"input_tokens": 5000, "output_tokens": 120}
        if asked.get("stream"):
            whole = {**about, "content": [], "stop_reason": None, "usage": usage}
            deltas: list[dict[str, Any]] = [{"type": "message_start", "message": whole}]
            pieces = [{"type": "text_delta", "text": piece} for piece in _pieces(head + REST)]
            deltas += _block(0, {"type": "text", "text": ""}, pieces)
            arguments = {"type": "input_json_delta", "partial_json": f'{{"path":"{path}"}}'}
            deltas += _block(1, {**call, "input": {}}, [arguments])
            end = {"stop_reason": "tool_use", "stop_sequence": None}
            deltas += [{"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]
            return _stream([f"event: {each['type']}\ndata: ".encode() + orjson.dumps(each) for each in deltas])
        content = [{"type": "text", "text": head + REST}, {**call, "input": {"path": path}}]
        return _json({**about, "content": content, "stop_reason": "tool_use", "usage": usage})


def _call(path: str) -> str:
    return f'{{"name": "read", "arguments": {{"path": "{path}"}}}}'


def _choice(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": None, **fields}


def _block(index: int, empty: dict[str, Any], deltas: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _pieces(text: str) -> Iterator[str]:
    step = len(text) // PIECES
    return (text[begin : begin + step] for begin in range(0, len(text), step))


def _json(content: Any) -> web.Response:
    return web.Response(body=orjson.dumps(content), content_type="application/json")


def _stream(events: list[bytes]) -> web.Response:
    """All events at once: no product is charged for the stub's writes."""
    return web.Response(body=b"".join(event + b"\n\n" for event in events), content_type="text/event-stream")


async def serve(checkpoint: Path) -> None:
    app = web.Application(client_max_size=2**26)
    app.add_routes(Stub(tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))).routes())
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=600)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(site.name, flush=True)
    await asyncio.Event().wait()


@asynccontextmanager
async def stub_process(checkpoint: Path) -> AsyncIterator[str]:
    """The URL of a stub for as long as the context lasts."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(checkpoint), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def set_delay(url: str, least: float, most: float) -> None:
    """Seconds that the stub waits before each answer from now on."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}/delay", json=[least, most]) as response:
        response.raise_for_status()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
