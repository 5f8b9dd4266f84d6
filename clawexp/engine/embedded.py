"""The engine that needs nothing but this package: a small torch loop in a child process, behind the engine URL."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clawexp.component import component
from clawexp.engine.client import EngineClient
from clawexp.errors import EngineError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.spec import Model, Positive, Seconds

LOG = "engine.log"
LOG_TAIL = 2000
STOP_S = 5.0


@component
class Embedded:
    """An engine on this machine's CPUs."""

    slots: Positive
    """Calls that are generated at once; others wait. Each slot keeps the keys of its last call for the next."""
    prefill_chunk: Annotated[int, Field(ge=16)]
    """Prompt tokens computed between two steps of generation."""
    deterministic: bool
    """The same prompts and keys give the same bits at any concurrency; slower, nothing is shared between calls."""
    threads: Positive
    start_s: Seconds
    """For the start, and for each load of weights."""

    @asynccontextmanager
    async def serve(self, model: Model, seed: int, folder: Path) -> AsyncIterator[EngineClient]:
        """Start the engine; its stderr goes to `folder/engine.log`. Raises ConfigError and EngineError."""
        settings = self.settings(model, seed)
        folder.mkdir(parents=True, exist_ok=True)
        process = await self._start(folder / LOG)
        try:
            port = await self._ready(process, json.dumps(settings), folder / LOG)
            async with self.client(f"http://127.0.0.1:{port}", settings["key"]) as client:
                with _cause_of_death(process, folder / LOG):
                    yield client
        finally:
            await _end(process)

    def settings(self, model: Model, seed: int) -> dict[str, Any]:
        """What `clawexp.engine.server.Settings` reads."""
        return {
            "checkpoint": str(checkpoint_folder(model.path)),
            "key": secrets.token_urlsafe(32),
            "parent": os.getpid(),
            "seed": seed,
            "slots": self.slots,
            "prefill_chunk": self.prefill_chunk,
            "context": model.context,
            "deterministic": self.deterministic,
            "threads": self.threads,
        }

    def client(self, url: str, key: str) -> EngineClient:
        """A connection to the live engine, not yet open."""
        return EngineClient(url, key, self.start_s)

    async def _start(self, log: Path) -> asyncio.subprocess.Process:
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        if self.deterministic:  # the matrix library's own promise of equal bits whatever the alignment
            environment["MKL_CBWR"] = "AUTO"
        with log.open("ab") as stderr:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "clawexp.engine.server",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )

    async def _ready(self, process: asyncio.subprocess.Process, settings: str, log: Path) -> int:
        assert process.stdin
        assert process.stdout
        process.stdin.write(settings.encode())
        process.stdin.close()
        try:
            async with asyncio.timeout(self.start_s):
                line = await process.stdout.readline()
        except TimeoutError as error:
            raise EngineError(f"the engine was not ready within {self.start_s:g} s; see {log}") from error
        word, _, port = line.decode().strip().partition(" ")
        if word != "ready":
            raise EngineError(f"the engine died at its start; {_end_of(log)}")
        return int(port)


@contextmanager
def _cause_of_death(process: asyncio.subprocess.Process, log: Path) -> Iterator[None]:
    """Where the engine is dead, what it said last explains more than that it does not answer."""
    try:
        yield
    except EngineError as error:
        if process.returncode is None:
            raise
        raise EngineError(f"the engine died (exit status {process.returncode}); {_end_of(log)}") from error


def _end_of(log: Path) -> str:
    tail = log.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
    return f"{log} ends with:\n{tail}" if tail else f"{log} is empty"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the engine to stop; after a while, make it."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        try:
            os.killpg(process.pid, how)
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except (ProcessLookupError, TimeoutError):
            continue
