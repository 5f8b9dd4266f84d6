"""The driver's side of the model boundary: capture processes, rollouts opened and closed on it, calls read back."""

import asyncio
import secrets
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from clawexp.capture.authority import authority
from clawexp.capture.journal import read_calls
from clawexp.child import Child, ChildOptions, child
from clawexp.errors import CaptureError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.records import Call, Door
from clawexp.rule import written
from clawexp.scratch import scratch_folder
from clawexp.spec import CaptureOptions, Model

START_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A rollout whose last call is in the journal."""

    calls: tuple[Call, ...]
    """In order of position."""
    counts: Mapping[str, Any]
    """See `clawexp.capture.open_rollout.OpenRollout.summary`."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One live capture process."""

    door: Door
    rendering: str
    admin: aiohttp.ClientSession
    process: Child

    async def ask(self, method: str, path: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
        """By its side door. Raises CaptureError."""
        async with self.process.cause_of_death():
            try:
                async with self.admin.request(method, f"http://capture{path}", json=content) as response:
                    answer = await response.json()
            except (aiohttp.ClientError, ValueError) as error:
                about = f"{type(error).__name__}: {error}"
                raise CaptureError(f"the capture process did not answer {path} ({about})") from error
        if "error" in answer:
            raise CaptureError(answer["error"])
        return answer


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The live capture processes of a run. A rollout keeps to one of them."""

    certificate: bytes | None
    """PEM of the authority that signs for intercepted hosts; None where the boundary is no proxy for others."""
    sockets: Path
    """The folder in which all doors are."""
    _options: CaptureOptions
    _folder: Path
    _workers: Sequence[Worker]

    @property
    def rendering(self) -> str:
        """Digest of how conversations become tokens."""
        return self._workers[0].rendering

    def door(self, rollout_id: str) -> Door:
        """Where the rollout is served."""
        return self._worker(rollout_id).door

    def _worker(self, rollout_id: str) -> Worker:
        return self._workers[zlib.crc32(rollout_id.encode()) % len(self._workers)]

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
        await self._worker(rollout_id).ask("POST", "/open", opening)
        return key

    async def close(self, rollout_id: str) -> Closed:
        """Stop serving a rollout, wait for its calls in flight, read them back. Raises CaptureError, JournalError."""
        counts = await self._worker(rollout_id).ask("POST", "/close", {"rollout_id": rollout_id})
        read = await asyncio.to_thread(read_calls, self.journal(rollout_id))  # a long one takes a while
        calls = sorted(read, key=lambda call: call.position)
        if len(calls) != counts["calls"]:
            raise CaptureError(f"rollout {rollout_id} made {counts['calls']} calls; its journal holds {len(calls)}")
        return Closed(calls=tuple(calls), counts=counts)

    async def stats(self) -> Sequence[Mapping[str, Any]]:
        """What each process says of itself: torch, rollouts, in_flight, cpu_s, peak_mb, pid."""
        return [await worker.ask("GET", "/stats", None) for worker in self._workers]


@asynccontextmanager
async def boundary(
    options: CaptureOptions, model: Model, engine_url: str, engine_key: str, folder: Path, *, interception: bool = False
) -> AsyncIterator[Boundary]:
    """Capture processes for as long as the context lasts. Journals go to `folder/calls`.

    Raises ConfigError where the checkpoint is not there, CaptureError where a process does not come up.
    """
    folder = folder.absolute()
    (folder / "calls").mkdir(parents=True, exist_ok=True)
    cache = folder / "responses" if options.cache else None
    if cache is not None:
        cache.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        sockets = stack.enter_context(_socket_folder())
        signing = stack.enter_context(authority()) if interception or options.allow_hosts else None
        workers = []
        for number in range(options.workers):
            config = {
                **_config(options, model, engine_url, engine_key),
                "socket": str(sockets / f"model-{number}"),
                "admin": str(sockets / f"admin-{number}"),
                "admin_key": secrets.token_hex(24),
                "authority": None if signing is None else str(signing.folder),
                "cache": None if cache is None else str(cache),
            }
            workers.append(await stack.enter_async_context(_serving(folder, config)))
        yield Boundary(
            certificate=None if signing is None else signing.certificate,
            sockets=sockets,
            _options=options,
            _folder=folder,
            _workers=workers,
        )


@asynccontextmanager
async def _serving(folder: Path, config: Mapping[str, Any]) -> AsyncIterator[Worker]:
    connector = aiohttp.UnixConnector(config["admin"])
    headers = {"Authorization": f"Bearer {config['admin_key']}"}
    async with (
        child(_child(folder), config) as process,
        aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout()) as admin,
    ):
        yield Worker(
            door=Door(socket=Path(config["socket"]), port=process.ready["port"]),
            rendering=process.ready["rendering"],
            admin=admin,
            process=process,
        )


def _child(folder: Path) -> ChildOptions:
    return ChildOptions(
        name="capture process",
        module="clawexp.capture.proxy",
        log=folder / "capture.log",
        start_s=START_S,
        fault=CaptureError,
        environment={},
        # Otherwise mitmproxy checks the type of each field of each message: a fifth of the time that a call takes.
        flags=("-O",),
    )


def _config(options: CaptureOptions, model: Model, engine_url: str, engine_key: str) -> dict[str, Any]:
    """What `clawexp.capture.proxy.ProxyConfig` reads, as far as all workers have it in common."""
    return {
        "checkpoint": str(checkpoint_folder(model.path)),
        "rendering": model.rendering,
        "model": model.name,
        "context": model.context,
        "max_tokens": model.max_tokens,
        "engine_url": engine_url,
        "engine_key": engine_key,
        "engine_patience_s": options.engine_patience_s,
        "engine_timeout_s": options.engine_timeout_s,
        "max_calls": options.max_calls,
        "fsync": options.fsync,
        "allow_hosts": options.allow_hosts,
        "keep_raw": options.keep_raw,
        "rules": written(options.rules),
    }


@contextmanager
def _socket_folder() -> Iterator[Path]:
    """A folder for the sockets, beside those of the sandboxes.

    Others may pass through it but not list it: inside a container a harness may run as another user.
    """
    with scratch_folder("sockets-") as sockets:
        sockets.chmod(0o711)
        yield sockets
