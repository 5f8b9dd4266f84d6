"""Other products under the same load: LiteLLM's proxy, and the interception server of verifiers."""

import asyncio
import json
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp

from load.dialects import ANTHROPIC_MODEL
from load.drive import Target
from load.stub import MODEL

START_S = 300.0
SERVER = Path(__file__).with_name("verifiers_server.py")


@asynccontextmanager
async def litellm(venv: Path, engine: str, folder: Path) -> AsyncIterator[Mapping[str, Target]]:
    """LiteLLM's proxy with one worker, no database and a master key: a target for each dialect that it is measured
    in, each with a route to the stub's route of the same dialect."""
    key = f"sk-{secrets.token_hex(16)}"
    models = [
        _litellm_model(MODEL, f"openai/{MODEL}", f"{engine}/v1"),
        _litellm_model(ANTHROPIC_MODEL, f"anthropic/{MODEL}", engine),
    ]
    config = {"model_list": models, "general_settings": {"master_key": key}}
    file = folder / "litellm.json"
    file.write_text(json.dumps(config))  # JSON is YAML
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(venv / "bin/litellm"), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--num_workers", "1", "--telemetry", "False"]
    environment = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(folder)}

    async def open_rollout() -> str:
        return key

    with (folder / "litellm.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,  # as clawexp's: the kernel shares a core out among sessions
        )
    try:
        await _answers(f"{url}/health/liveliness", folder / "litellm.log", process)
        yield dict.fromkeys(("chat", "anthropic"), Target(url=url, pid=process.pid, open=open_rollout))
    finally:
        process.kill()
        await process.wait()


def _litellm_model(name: str, upstream: str, base: str) -> dict[str, object]:
    return {"model_name": name, "litellm_params": {"model": upstream, "api_base": base, "api_key": "sk-none"}}


async def _answers(url: str, log: Path, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
        while True:
            if process.returncode is not None:
                sys.exit(f"it ended at its start:\n{log.read_text()[-2000:]}")
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


@asynccontextmanager
async def verifiers(venv: Path, engine: str, checkpoint: Path, folder: Path) -> AsyncIterator[Mapping[str, Target]]:
    """verifiers' interception server: its train client for chat, which renders and samples token ids as clawexp does,
    and its eval client, a relay, for Anthropic messages, which the train client refuses."""
    command: Sequence[str] = [str(venv / "bin/python"), str(SERVER), engine, str(checkpoint)]
    with (folder / "verifiers.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        if not line:
            sys.exit(f"it ended at its start:\n{(folder / 'verifiers.log').read_text()[-2000:]}")
        told = json.loads(line)
        async with aiohttp.ClientSession() as driver:

            async def open_rollout(dialect: str) -> str:
                async with driver.post(f"{told['rollouts']}/{dialect}") as response:
                    response.raise_for_status()
                    return await response.text()

            yield {
                dialect: Target(url=told["url"], pid=process.pid, open=partial(open_rollout, dialect))
                for dialect in ("chat", "anthropic")
            }
    finally:
        process.kill()
        await process.wait()
