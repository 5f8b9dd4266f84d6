"""A child process of ours that serves: given its settings, it says when it is ready, and ends with its context.

`child` is the parent's side; the program itself begins with `read_settings` and calls `say_ready` once it serves.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawexp.errors import ClawexpError

STOP_S = 5.0
DYING_S = 0.5
TAIL_BYTES = 2000
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class ChildOptions:
    """`ChildOptions(name="engine", module="clawexp.engine.server", log=..., start_s=60, fault=EngineError)`"""

    name: str
    """For messages: `the NAME died`."""
    module: str
    """Run as `python -m MODULE`."""
    log: Path
    """Takes its stderr."""
    start_s: float
    fault: type[ClawexpError]
    environment: Mapping[str, str]
    """Beside this process's own."""
    flags: tuple[str, ...] = ()
    """Of the interpreter."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A live one."""

    options: ChildOptions
    ready: Mapping[str, Any]
    """What it said when it was ready."""
    process: asyncio.subprocess.Process

    @asynccontextmanager
    async def cause_of_death(self) -> AsyncIterator[None]:
        """Where the process is dead, what it said last explains more than that it does not answer."""
        try:
            yield
        except self.options.fault as error:
            # Its sockets are closed a moment before its end is known here.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DYING_S):
                    await self.process.wait()
            if self.process.returncode is None:
                raise
            raise self._death() from error

    @asynccontextmanager
    async def outliving(self) -> AsyncIterator[None]:
        """End what is done inside when the process ends. Raises the fault then."""
        loop, ended = asyncio.get_running_loop(), os.pidfd_open(self.process.pid)
        alive = asyncio.timeout(None)
        try:
            async with alive:

                def end() -> None:
                    loop.remove_reader(ended)
                    alive.reschedule(loop.time())

                loop.add_reader(ended, end)
                try:
                    yield
                finally:
                    loop.remove_reader(ended)
        except TimeoutError as error:
            if not alive.expired():
                raise
            await self.process.wait()
            raise self._death() from error
        finally:
            os.close(ended)

    def _death(self) -> ClawexpError:
        return _death(self.options, f"died (exit status {self.process.returncode})")


@asynccontextmanager
async def child(options: ChildOptions, settings: Mapping[str, Any]) -> AsyncIterator[Child]:
    """Start it, wait until it serves, and end it with the context.

    Raises `options.fault` where that fails, and at once when it dies before its context ends.
    """
    options.log.parent.mkdir(parents=True, exist_ok=True)
    process = await _started(options)
    try:
        server = Child(options=options, ready=await _ready(process, options, settings), process=process)
        async with server.outliving(), server.cause_of_death():
            yield server
    finally:
        await _end(process)


async def _started(options: ChildOptions) -> asyncio.subprocess.Process:
    with options.log.open("ab") as stderr:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *options.flags,
            "-m",
            options.module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **options.environment},
            # A terminal's Ctrl-C is for the driver, which ends this process last.
            start_new_session=True,
        )


async def _ready(
    process: asyncio.subprocess.Process, options: ChildOptions, settings: Mapping[str, Any]
) -> Mapping[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(options.start_s):
            process.stdin.write(json.dumps({"parent": os.getpid(), "settings": settings}).encode())
            process.stdin.close()
            line = await process.stdout.readline()
    except ConnectionError:
        line = b""
    except TimeoutError as error:
        raise _death(options, f"was not ready within {options.start_s:g} s") from error
    if not line:
        raise _death(options, "died at its start")
    return json.loads(line)


def _death(options: ChildOptions, what: str) -> ClawexpError:
    tail = options.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    end = f"{options.log} ends with:\n{tail}" if tail else f"{options.log} is empty"
    return options.fault(f"the {options.name} {what}; {end}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the process to stop; after a while, make it. What it leaves in its group is killed."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            os.killpg(process.pid, how)
            async with asyncio.timeout(STOP_S):
                await process.wait()
    if not Path(f"/proc/{process.pid}").exists():  # otherwise the number is another's by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def read_settings(end: signal.Signals = signal.SIGKILL) -> dict[str, Any]:
    """In the child: what the parent gave it. From now on it gets `end` when the parent ends, however that ends."""
    given = json.load(sys.stdin)
    end_with_parent(end)
    if os.getppid() != given["parent"]:  # it died before the call above
        sys.exit("the process that started this one is gone")
    return given["settings"]


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Send this process `how` when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, how)


def say_ready(facts: Mapping[str, Any]) -> None:
    """In the child: it serves; `facts` are what the parent must know to reach it."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
