"""The capture process of a run, opened as a run opens it."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clawexp.capture.boundary import Boundary, boundary
from clawexp.protocols import EngineHandle
from clawexp.spec import CaptureOptions, Model
from load.drive import Target
from load.stub import MODEL

CONTEXT = 131072


class NoEngine:
    """Fills a model's engine field: the stub is reached by its URL."""

    def serve(self, model: Model, seed: int, folder: Path) -> AbstractAsyncContextManager[EngineHandle]:
        raise NotImplementedError


@dataclass(kw_only=True)
class Captured:
    """The boundary as a target, and which rollouts it has open."""

    live: Boundary
    pid: int
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    opened: list[str] = field(default_factory=list)

    @property
    def target(self) -> Target:
        return Target(url=f"http://127.0.0.1:{self.live.door('').port}", pid=self.pid, open=self.open)

    async def open(self) -> str:
        number = next(self.numbers)
        self.opened.append(f"rollout-{number}")
        return await self.live.open(self.opened[-1], seed=number)

    async def close(self) -> Counter[str]:
        """End all rollouts; their calls by cause, as their journals have them."""
        causes: Counter[str] = Counter()
        for rollout_id in self.opened:
            causes.update(call.cause for call in (await self.live.close(rollout_id)).calls)
        self.opened.clear()
        return causes


@asynccontextmanager
async def captured(checkpoint: Path, engine: str, folder: Path) -> AsyncIterator[Captured]:
    """One capture process; journals in `folder`, each call synced to disk."""
    options = CaptureOptions(
        temperature=1.0,
        max_calls=10_000,
        engine_patience_s=0.0,
        engine_timeout_s=120,
        fsync=True,
        workers=1,
        allow_hosts=(),
        cache=False,
        keep_raw=False,
        rules={},
    )
    model = Model(
        name=MODEL,
        path=str(checkpoint),
        rendering="qwen3",
        context=CONTEXT,
        max_tokens=1024,
        source=None,
        engine=NoEngine(),
    )
    async with boundary(options, model, engine, "", folder) as live:
        (stats,) = await live.stats()
        yield Captured(live=live, pid=stats["pid"])
