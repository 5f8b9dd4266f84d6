"""The driver's side of the model boundary: one capture process, rollouts opened and closed on it, calls read
back."""

import asyncio
import json
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from clawexp.capture.journal import read_calls
from clawexp.errors import CaptureError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.records import Call
from clawexp.runtime.reaper import scratch_folder
from clawexp.spec import CaptureOptions, Model

START_S = 60.0
END_S = 5.0
LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes."""
TAIL_BYTES = 2000


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
    _process: asyncio.subprocess.Process

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
        try:
            async with self._admin.request(method, f"http://capture{path}", json=content) as response:
                answer = await response.json()
        except (aiohttp.ClientError, ValueError) as error:
            state = f"ended with {self._process.returncode}" if self._process.returncode is not None else "runs"
            raise CaptureError(
                f"the capture process did not answer {path} ({type(error).__name__}: {error}); it {state}. "
                f"The end of its log, {_log(self._folder)}:\n{_tail(_log(self._folder))}"
            ) from error
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
            _process(folder) as process,
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(config["admin"]), timeout=aiohttp.ClientTimeout()
            ) as admin,
        ):
            ready = await _start(process, config, folder)
            yield Boundary(
                socket=sockets / "model",
                port=ready["port"],
                rendering=ready["rendering"],
                _options=options,
                _folder=folder,
                _admin=admin,
                _process=process,
            )


def _config(options: CaptureOptions, model: Model, engine_url: str, engine_key: str, sockets: Path) -> dict[str, Any]:
    """What `clawexp.capture.proxy.ProxyConfig` reads."""
    return {
        "parent": os.getpid(),
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


@asynccontextmanager
async def _process(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process, not yet configured; ended, and waited for, with the context."""
    with _log(folder).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "clawexp.capture.proxy",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            # A terminal's Ctrl-C is for the driver, which ends this process last.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await _end(process)


async def _start(process: asyncio.subprocess.Process, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Configure the process and wait until it serves. Raises CaptureError."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            process.stdin.write(json.dumps(config).encode())
            process.stdin.close()
            line = await process.stdout.readline()
    except (TimeoutError, ConnectionError) as error:
        raise CaptureError(f"the capture process did not start in {START_S:.0f} s:\n{_tail(_log(folder))}") from error
    if not line:
        raise CaptureError(f"the capture process ended as it started:\n{_tail(_log(folder))}")
    return json.loads(line)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _log(folder: Path) -> Path:
    return folder / "capture.log"


def _tail(log: Path) -> str:
    return log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
