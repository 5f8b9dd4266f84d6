"""The driver's side of the model boundary: one capture process, rollouts opened and closed on it, calls read
back."""

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from clawexp.capture.journal import read_calls
from clawexp.child import Child, ChildOptions, child
from clawexp.errors import CaptureError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.records import Call
from clawexp.runtime.reaper import scratch_folder
from clawexp.spec import CaptureOptions, Model

START_S = 60.0
LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes."""


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A rollout whose last call is in the journal."""

    calls: tuple[Call, ...]
    """In order of position."""
    counts: Mapping[str, Any]
    """`calls`, `forks` by cause, `capture_faults`, `engine_faults`, `final_answers`, `replayed`, `refused`,
    `left`,
    `last_verdict`."""


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A live capture process."""

    socket: Path
    """Harnesses reach the model here, by plain HTTP."""
    port: int
    """And here, on 127.0.0.1."""
    rendering: str
    """Digest of how conversations become tokens."""
    _options: CaptureOptions
    _folder: Path
    _admin: aiohttp.ClientSession
    _process: Child

    def journal(self, rollout_id: str) -> Path:
        """Where the rollout's calls are written."""
        return self._folder / "calls" / f"{rollout_id}.log"

    async def open(self, rollout_id: str, seed: int, temperature: float | None = None) -> str:
        """Begin to serve a rollout; its key. `temperature` None is that of training. Raises CaptureError."""
        key = f"sk-{secrets.token_hex(24)}"
        opening = {
            "rollout_id": rollout_id,
            "key": key,
            "seed": seed,
            "temperature": self._options.temperature if temperature is None else temperature,
            "journal": str(self.journal(rollout_id)),
        }
        await self._ask("POST", "/open", opening)
        return key

    async def close(self, rollout_id: str) -> Closed:
        """Stop serving a rollout, wait for its calls in flight, read them back. Raises CaptureError,
        JournalError."""
        counts = await self._ask("POST", "/close", {"rollout_id": rollout_id})
        calls = sorted(read_calls(self.journal(rollout_id)), key=lambda call: call.position)
        if len(calls) != counts["calls"]:
            raise CaptureError(f"rollout {rollout_id} made {counts['calls']} calls; its journal holds {len(calls)}")
        return Closed(calls=tuple(calls), counts=counts)

    async def stats(self) -> Mapping[str, Any]:
        """What the process says of itself: torch, rollouts, in_flight, cpu_s, peak_mb, pid."""
        return await self._ask("GET", "/stats", None)

    async def _ask(self, method: str, path: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
        async with self._process.cause_of_death():
            try:
                async with self._admin.request(method, f"http://capture{path}", json=content) as response:
                    answer = await response.json()
            except (aiohttp.ClientError, ValueError) as error:
                about = f"{type(error).__name__}: {error}"
                raise CaptureError(f"the capture process did not answer {path} ({about})") from error
        if "error" in answer:
            raise CaptureError(answer["error"])
        return answer


@asynccontextmanager
async def boundary(
    options: CaptureOptions, model: Model, engine_url: str, engine_key: str, folder: Path
) -> AsyncIterator[Boundary]:
    """A capture process for as long as the context lasts. Journals go to `folder/calls`.

    Raises ConfigError where the checkpoint is not there, CaptureError where the process does not come up.
    """
    folder = folder.absolute()
    (folder / "calls").mkdir(parents=True, exist_ok=True)
    with _socket_folder(folder) as sockets:
        config = _config(options, model, engine_url, engine_key, sockets)
        async with (
            child(_child(folder), config) as process,
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(config["admin"]), timeout=aiohttp.ClientTimeout()
            ) as admin,
        ):
            yield Boundary(
                socket=sockets / "model",
                port=process.ready["port"],
                rendering=process.ready["rendering"],
                _options=options,
                _folder=folder,
                _admin=admin,
                _process=process,
            )


def _child(folder: Path) -> ChildOptions:
    return ChildOptions(
        name="capture process",
        module="clawexp.capture.proxy",
        log=folder / "capture.log",
        start_s=START_S,
        fault=CaptureError,
        environment={},
    )


def _config(options: CaptureOptions, model: Model, engine_url: str, engine_key: str, sockets: Path) -> dict[str, Any]:
    """What `clawexp.capture.proxy.ProxyConfig` reads."""
    return {
        "socket": str(sockets / "model"),
        "admin": str(sockets / "admin"),
        "checkpoint": str(checkpoint_folder(model.path)),
        "rendering": model.rendering,
        "model": model.name,
        "context": model.context,
        "max_tokens": model.max_tokens,
        "engine_url": engine_url,
        "engine_key": engine_key,
        "engine_retries": options.engine_retries,
        "engine_timeout_s": options.engine_timeout_s,
        "max_calls": options.max_calls,
        "fsync": options.fsync,
    }


@contextmanager
def _socket_folder(folder: Path) -> Iterator[Path]:
    """A folder for the sockets: in the run's, or among the sandboxes' where that path is too long for a socket.

    Others may pass through it but not list it: inside a container a harness may run as another user.
    """
    inside = folder / "sockets"
    shutil.rmtree(inside, ignore_errors=True)
    if len(os.fsencode(inside / "model")) > LONGEST_SOCKET_PATH:
        with scratch_folder("sockets-") as sockets:
            sockets.chmod(0o711)
            yield sockets
        return
    inside.mkdir()
    inside.chmod(0o711)
    try:
        yield inside
    finally:
        shutil.rmtree(inside, ignore_errors=True)
