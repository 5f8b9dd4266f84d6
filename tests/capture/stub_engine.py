"""What the tests of capture stand on: a scripted engine, and a model without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from clawexp.capture.tokenizer import Tokenizer
from clawexp.protocols import EngineHandle
from clawexp.spec import CaptureOptions, Model


@dataclass(eq=False)
class StubEngine:
    """Speaks the engine's URL contract and says what a test tells it to."""

    tokenizer: Tokenizer
    url: str = ""
    script: list[dict[str, Any]] = field(default_factory=list)
    """Answers still to be given, in order; without any it says "ok"."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    """So many requests get an error first."""
    status: int = 500
    """Of that error."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released once for every request that is answered or held."""
    release: asyncio.Event | None = None
    """While not None and not set, answers are held back."""

    def say(self, text: str, *, stop: bool = True, **changes: Any) -> None:
        """Answer with `text`; `changes` overrides fields of the choice."""
        ids = self.tokenizer.encode(text + ("<|im_end|>" if stop else ""))
        self.script.append(self.choice(ids, "stop" if stop else "length") | changes)

    def choice(self, ids: list[int], finish: str) -> dict[str, Any]:
        content = [{"logprob": -0.5 - 0.001 * index} for index in range(len(ids))]
        return {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish}

    async def generate(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.requests.append(asked)
        if self.failures:
            self.failures -= 1
            return web.json_response({"error": "scripted"}, status=self.status)
        if not self.script:
            self.say("ok")
        choice = self.script.pop(0)
        self.arrived.release()
        try:
            if self.release is not None:
                await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        versions = [{"version": 7, "start": 0, "end": len(choice["token_ids"])}]
        return web.json_response({"choices": [choice | {"weight_versions": versions}]})


@asynccontextmanager
async def serve_stub(tokenizer: Tokenizer) -> AsyncIterator[StubEngine]:
    """A stub engine on a port of its own."""
    engine = StubEngine(tokenizer)
    app = web.Application(client_max_size=2**26)
    app.add_routes([web.post("/inference/v1/generate", engine.generate)])
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = site.name
    try:
        yield engine
    finally:
        await runner.cleanup()


class NoEngine:
    """Fills a model's engine field where the boundary is all that is tested."""

    def serve(self, model: Model, seed: int, folder: Path) -> AbstractAsyncContextManager[EngineHandle]:
        raise NotImplementedError


def model_of(checkpoint: Path, *, context: int = 8192) -> Model:
    return Model(
        name="tiny",
        path=str(checkpoint),
        rendering="qwen3",
        context=context,
        max_tokens=256,
        source=None,
        engine=NoEngine(),
    )


def options_of(**changes: Any) -> CaptureOptions:
    options: dict[str, Any] = {
        "temperature": 1.0,
        "max_calls": 40,
        "engine_patience_s": 0.7,
        "engine_timeout_s": 30.0,
        "fsync": False,
        "workers": 1,
        "allow_hosts": (),
        "cache": False,
        "keep_raw": False,
        "rules": {},
    }
    return CaptureOptions(**options | changes)
