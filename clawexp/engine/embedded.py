"""The engine that needs nothing but this package: a small torch loop in a child process, behind the engine URL."""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clawexp.child import ChildOptions, child
from clawexp.component import component
from clawexp.engine.client import EngineClient
from clawexp.errors import EngineError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.spec import Model, Positive, Seconds

LOG = "engine.log"
SMALL_BYTES = 64_000_000


@component
class Embedded:
    """An engine on this machine's CPUs."""

    slots: Positive
    """Calls that are generated at once; others wait. Each slot keeps the keys of its last call for the next."""
    prefill_chunk: Annotated[int, Field(ge=16)]
    """Prompt tokens computed between two steps of generation."""
    deterministic: bool
    """The same prompts and keys give the same bits at any concurrency; slower, nothing is shared between calls."""
    threads: Positive | None
    """None: one for a checkpoint below SMALL_BYTES, where a second one gains nothing; else one for each core."""
    start_s: Seconds
    """For the start, and for each load of weights."""

    @property
    def tells_experts(self) -> bool:
        return True

    @asynccontextmanager
    async def serve(self, model: Model, seed: int, folder: Path) -> AsyncIterator[EngineClient]:
        """Start the engine; its stderr goes to `folder/engine.log`. Raises ConfigError and EngineError."""
        settings = self.settings(model, seed)
        environment = {"OMP_NUM_THREADS": str(settings["threads"])}
        if self.deterministic:  # the matrix library's own promise of equal bits whatever the alignment
            environment["MKL_CBWR"] = "AUTO"
        options = ChildOptions(
            name="engine",
            module="clawexp.engine.server",
            log=folder / LOG,
            start_s=self.start_s,
            fault=EngineError,
            environment=environment,
        )
        async with child(options, settings) as server:
            url = f"http://127.0.0.1:{server.ready['port']}"
            async with self.client(url, settings["key"]) as client:
                yield client

    def settings(self, model: Model, seed: int) -> dict[str, Any]:
        """What `clawexp.engine.server.Settings` reads."""
        return {
            "checkpoint": str(checkpoint_folder(model.path)),
            "key": secrets.token_urlsafe(32),
            "seed": seed,
            "slots": self.slots,
            "prefill_chunk": self.prefill_chunk,
            "context": model.context,
            "deterministic": self.deterministic,
            "threads": self.threads or _threads_for(checkpoint_folder(model.path)),
        }

    def client(self, url: str, key: str) -> EngineClient:
        """A connection to the live engine, not yet open."""
        return EngineClient(url, key, self.start_s)


def _threads_for(checkpoint: Path) -> int:
    weights = (checkpoint / "model.safetensors").stat().st_size
    return 1 if weights < SMALL_BYTES else len(os.sched_getaffinity(0))
