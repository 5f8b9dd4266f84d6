"""A program: the inside of a capture process, and how much of its calls is left without a full collection.

`python -O leavings.py CHECKPOINT FOLDER`, as the capture process runs: otherwise mitmproxy's checks keep all of it.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from mitmproxy import http
from stub_engine import serve_stub

from clawexp.capture import proxy
from clawexp.capture.keep_alive import AnsweredStream
from clawexp.capture.tokenizer import Tokenizer

CALLS = 20


def settings(checkpoint: Path, engine_url: str, folder: Path) -> proxy.ProxyConfig:
    return proxy.ProxyConfig(
        socket=str(folder / "model"),
        admin=str(folder / "admin"),
        admin_key="a",
        checkpoint=str(checkpoint),
        rendering="qwen3",
        model="tiny",
        context=8192,
        max_tokens=100,
        engine_url=engine_url,
        engine_key="s",
        engine_patience_s=0.0,
        engine_timeout_s=60,
        max_calls=1000,
        fsync=False,
        allow_hosts=(),
        authority=None,
        cache=None,
        rules={},
        keep_raw=False,
    )


async def ask(port: int, folder: Path) -> None:
    """Open a rollout and make its calls."""
    opening = {"rollout_id": "r", "key": "k", "seed": 0, "temperature": 1.0, "journal": str(folder / "r.log")}
    connector = aiohttp.UnixConnector(str(folder / "admin"))
    async with aiohttp.ClientSession(connector=connector, headers={"authorization": "Bearer a"}) as admin:
        await admin.post("http://capture/open", json=opening)
    gc.collect()
    gc.disable()
    async with aiohttp.ClientSession(headers={"authorization": "Bearer k"}) as session:
        for number in range(CALLS):
            body = {"messages": [{"role": "user", "content": f"Number {number}."}], "stream": bool(number % 2)}
            async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
                await answer.read()
                if answer.status != 200:
                    sys.exit(await answer.text())
        sys.stdout.write(json.dumps({kind.__name__: alive(kind) for kind in (AnsweredStream, http.HTTPFlow)}))


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


async def main(checkpoint: Path, folder: Path) -> None:
    ready: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
    proxy.say_ready = ready.set_result
    proxy.Garbage = lambda: None  # this program counts what is there to be collected
    async with serve_stub(Tokenizer(checkpoint)) as engine, asyncio.TaskGroup() as group:
        serving = group.create_task(proxy.serve(settings(checkpoint, engine.url, folder)))
        await ask((await ready)["port"], folder)
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
