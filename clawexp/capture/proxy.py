"""The capture process: `python -m clawexp.capture.proxy`.

Its config is JSON on stdin; it prints one line of JSON once it serves. It dies with its parent, and at SIGTERM.
Its log is stderr.
"""

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from mitmproxy import master, options
from mitmproxy.addons import core, errorcheck, next_layer, proxyserver

from clawexp.capture.addon import CaptureAddon
from clawexp.capture.admin import admin_socket
from clawexp.capture.caller import Caller
from clawexp.capture.generation import Sampler
from clawexp.capture.rendering import open_rendering
from clawexp.capture.service import CaptureService
from clawexp.capture.socket_server import unix_socket
from clawexp.engine.client import EngineClient
from clawexp.errors import ClawexpError

PR_SET_PDEATHSIG = 1
NOWHERE = "reverse:http://127.0.0.1:9"
"""Upstream of the reverse mode. Every request is answered here, so it is never dialled."""


@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """What the driver tells the process. It holds the engine's key, so it travels by stdin."""

    parent: int
    """The driver's process id."""
    socket: str
    admin: str
    checkpoint: str
    rendering: Literal["qwen3", "template"]
    model: str
    context: int
    max_tokens: int
    engine_url: str
    engine_key: str
    engine_retries: int
    engine_timeout_s: float
    max_calls: int
    fsync: bool

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**json.loads(text))


def main() -> None:
    """Serve until the driver or a signal ends it."""
    config = ProxyConfig.read(sys.stdin.read())
    _die_with(config.parent)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(config))
    except ClawexpError as error:
        sys.exit(f"{type(error).__name__}: {error}")


async def serve(config: ProxyConfig) -> None:
    """Serve until SIGTERM. Raises ConfigError where the checkpoint cannot be rendered."""
    rendering = open_rendering(Path(config.checkpoint), config.rendering)
    async with EngineClient(config.engine_url, config.engine_key, config.engine_timeout_s) as engine:
        caller = Caller(
            model=config.model,
            context=config.context,
            max_tokens=config.max_tokens,
            rendering=rendering,
            sampler=Sampler(engine, rendering.stop_ids, config.engine_retries),
        )
        service = CaptureService(caller, config.max_calls, config.fsync)
        addon = CaptureAddon(service)
        proxy, servers = _proxy(addon)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, proxy.shutdown)
        async with asyncio.TaskGroup() as group:
            group.create_task(proxy.run())
            await addon.serving.wait()
            (instance,) = servers.servers
            async with unix_socket(Path(config.socket), instance), admin_socket(Path(config.admin), service):
                _settle_memory()
                _say({"port": instance.listen_addrs[0][1], "rendering": rendering.digest})
                await proxy.should_exit.wait()


def _proxy(addon: CaptureAddon) -> tuple[master.Master, proxyserver.Proxyserver]:
    """A bare mitmproxy: the addons that it cannot do without, and ours."""
    settings = options.Options(listen_host="127.0.0.1", listen_port=0, mode=[NOWHERE], http2=False)
    proxy = master.Master(settings, event_loop=asyncio.get_running_loop(), with_termlog=False)
    servers = proxyserver.Proxyserver()
    proxy.addons.add(core.Core(), servers, next_layer.NextLayer(), errorcheck.ErrorCheck(), addon)
    proxy.options.update(connection_strategy="lazy")
    return proxy, servers


def _settle_memory() -> None:
    """Full collections stop the loop for tens of milliseconds: what is loaded by now is never looked at
    again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends; at once where it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the driver is gone")


def _say(ready: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
