"""One capture process between an official client and a scripted engine, as the tests of all dialects use it."""

import asyncio
import io
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import aiohttp
from stub_engine import StubEngine

from clawexp.capture.boundary import Boundary
from clawexp.records import Call

CALL = '<tool_call>\n{"name": "read",  "arguments": {"path": "notes.txt", "lines": [1, 2]}}\n</tool_call>'
"""Not as JSON.stringify would write it."""
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CONTEXT = 2048
MAX_CALLS = 12

Client = TypeVar("Client")


@dataclass
class Bench(Generic[Client]):
    """A live process; `open` gives a rollout of its own and a client for it."""

    engine: StubEngine
    boundary: Boundary
    connect: Callable[[str, str], AbstractAsyncContextManager[Client]]
    """URL and key -> the dialect's official client."""
    clients: AsyncExitStack
    opened: int = 0
    key: str = ""
    """Of the rollout that was opened last."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.boundary.door('').port}"

    async def open(self) -> tuple[str, Client]:
        self.opened += 1
        rollout_id = f"rollout-{self.opened}"
        self.key = await self.boundary.open(rollout_id, seed=3)
        return rollout_id, await self.client(self.key)

    async def client(self, key: str) -> Client:
        return await self.clients.enter_async_context(self.connect(self.url, key))

    async def close(self, rollout_id: str) -> tuple[Call, ...]:
        return (await self.boundary.close(rollout_id)).calls

    async def send(self, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
        """Status and JSON of a bare request."""
        sent = {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}{path}", data=io.BytesIO(body), headers=sent) as got,
        ):
            return got.status, await got.json()


def assert_exact_chain(calls: Sequence[Call]) -> None:
    """Each call continues the one before it, token for token."""
    assert [call.cause for call in calls] == ["root"] + ["continue"] * (len(calls) - 1)
    for earlier, later in pairwise(calls):
        before = earlier.prompt_ids + earlier.sampled_ids
        assert later.prompt_ids[: len(before)] == before
        assert (later.parent, later.shared) == (earlier.call_id, len(before))


@asynccontextmanager
async def undisturbed(bench: Bench[Any]) -> AsyncIterator[None]:
    """Another rollout asks all the time: each time it is answered, at once, and nothing of it is marked."""
    rollout_id = f"neighbour-{secrets.token_hex(4)}"
    key = await bench.boundary.open(rollout_id, seed=1)
    ended, waits = asyncio.Event(), []

    async def ask() -> None:
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session:
            while not ended.is_set():
                begin = asyncio.get_running_loop().time()
                async with session.get(f"{bench.url}/v1/models") as got:
                    assert got.status == 200
                    await got.read()
                waits.append(asyncio.get_running_loop().time() - begin)
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(ask())
        try:
            yield
        finally:
            ended.set()
    assert waits
    assert max(waits) < 5
    counts = (await bench.boundary.close(rollout_id)).counts
    assert (counts["refused"], counts["left"], counts["capture_faults"]) == (0, 0, 0)
