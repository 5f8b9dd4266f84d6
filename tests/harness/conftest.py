"""One rollout of a harness against a scripted model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import web
from dialect_model import DialectModel, ServedDialect
from scripted_model import KEY, AnyGrader, Attempt, Attempted, ScriptedModel, Served

from clawexp.capture.dialects.anthropic_messages import AnthropicMessages
from clawexp.capture.dialects.openai_responses import OpenAIResponses
from clawexp.protocols import Harness, Runtime
from clawexp.records import Link, Owner, Task
from clawexp.runtime.bubblewrap import Bubblewrap

Model = TypeVar("Model", ScriptedModel, DialectModel)


@asynccontextmanager
async def serving(model: Model, path: str) -> AsyncIterator[Model]:
    """`model` behind its socket, while the context lasts."""
    app = web.Application(client_max_size=10**8)
    app.router.add_post(path, model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(model.socket)).start()
        yield model
    finally:
        await runner.cleanup()


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """Serves a model with the given replies."""
    return lambda *replies: serving(ScriptedModel(replies, tmp_path / "model.sock"), "/v1/chat/completions")


@pytest.fixture
def served_anthropic(tmp_path: Path) -> ServedDialect:
    """The same in Anthropic's dialect."""
    return lambda *replies: serving(DialectModel(AnthropicMessages(), replies, tmp_path / "model.sock"), "/v1/messages")


@pytest.fixture
def served_responses(tmp_path: Path) -> ServedDialect:
    """The same in that of OpenAI's responses."""
    return lambda *replies: serving(DialectModel(OpenAIResponses(), replies, tmp_path / "model.sock"), "/v1/responses")


@pytest.fixture
def attempted(tmp_path: Path) -> Attempted:
    """Runs a harness once in a sandbox against a model."""

    async def attempt(
        harness: Harness,
        model: ScriptedModel | DialectModel,
        instruction: str = "Copy the value of x to out.txt.",
        runtime: Runtime | None = None,
        context: int = 8000,
    ) -> Attempt:
        task = Task(id="t", instruction=instruction, files={"a.conf": b"x = 4\n"}, grader=AnyGrader(), split="train")
        owner = Owner(run_id="run", rollout_id="r", root=tmp_path / "b", proxy_socket=model.socket, proxy_port=8089)
        runtime = runtime or Bubblewrap(
            file_bytes=100_000, memory_mb=4000, cpus=2.0, pids=1000, disk_mb=4000, require_limits=False
        )
        async with runtime.sandbox(task, harness.needs(), owner) as sandbox:
            link = Link(
                url=sandbox.facts["proxy_url"],
                socket=sandbox.facts["proxy_socket"],
                key=KEY,
                model="scripted",
                context=context,
                max_tokens=500,
            )
            launch = harness.launch(task, link, sandbox)
            assert KEY not in " ".join(launch.command.argv)
            await sandbox.put(launch.files)
            finished = await sandbox.run(launch.command)
            files = {path: await sandbox.get(path) for path in await sandbox.files()}
        return Attempt(finished, files, dict(harness.counts(finished)))

    return attempt
