"""The embedded engine as a program, `python -m clawexp.engine.server`, serving on loopback alone."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from aiohttp import web

from clawexp.child import read_settings, say_ready
from clawexp.engine.flaws import Flaws
from clawexp.engine.routes import Played, application
from clawexp.engine.scheduler import Scheduler
from clawexp.engine.script import Script
from clawexp.engine.tools import ToolCall
from clawexp.model.decoder import Policy

KEEP_ALIVE_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the parent gives."""

    checkpoint: str
    key: str
    """The bearer key that every request must carry."""
    seed: int
    slots: int
    prefill_chunk: int
    context: int
    deterministic: bool
    threads: int
    calls: Sequence[ToolCall] | None = None
    """None: answers are sampled. Otherwise a script says them: these calls, or where there are none, what it is told
    of each task."""
    flaws: Mapping[str, float] | None = None
    """Of a script: the fields of `clawexp.engine.flaws.Flaws`."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM."""
    policy = Policy.load(Path(settings.checkpoint)).requires_grad_(False)
    scheduler = Scheduler(
        policy,
        seed=settings.seed,
        slots=settings.slots,
        prefill_chunk=settings.prefill_chunk,
        context=settings.context,
        deterministic=settings.deterministic,
    )
    # A client that leaves cancels its handler, and with it the generation.
    played = None
    if settings.calls is not None and settings.flaws is not None:
        played = Played(Script(Path(settings.checkpoint), settings.calls), Flaws(**settings.flaws))
    runner = web.AppRunner(
        application(scheduler, settings.key, played),
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_S,
        access_log=None,
        shutdown_timeout=0.5,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    say_ready({"port": runner.addresses[0][1]})
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(scheduler.run())
        await stop.wait()
        work.cancel()
    await runner.cleanup()


def main() -> None:
    settings = Settings(**read_settings())
    torch.set_num_threads(settings.threads)
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
