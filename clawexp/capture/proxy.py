"""The capture process, `python -m clawexp.capture.proxy`. It ends at SIGTERM; its log is stderr."""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvloop
from mitmproxy import master, options
from mitmproxy.addons import core, errorcheck, next_layer, proxyserver, tlsconfig

from clawexp.capture.addon import CaptureAddon
from clawexp.capture.admin import admin_socket
from clawexp.capture.caller import Caller
from clawexp.capture.garbage import Garbage
from clawexp.capture.generation import Sampler
from clawexp.capture.listeners import Listeners
from clawexp.capture.passage import Passages
from clawexp.capture.rendering import open_rendering
from clawexp.capture.roots import system_roots
from clawexp.capture.rules import Rules
from clawexp.capture.service import CaptureService
from clawexp.capture.socket_server import unix_socket, widen_backlog
from clawexp.capture.unserved import widen
from clawexp.capture.upstream import Upstream
from clawexp.child import read_settings, say_ready
from clawexp.engine.client import EngineClient
from clawexp.errors import ClawexpError
from clawexp.rule import read

SWITCH_S = 0.001


@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """What the driver tells the process. It holds keys, so it travels by stdin."""

    socket: str
    admin: str
    admin_key: str
    checkpoint: str
    rendering: Literal["qwen3", "template"]
    model: str
    context: int
    max_tokens: int
    engine_url: str
    engine_key: str
    engine_patience_s: float
    engine_timeout_s: float
    max_calls: int
    fsync: bool
    allow_hosts: Sequence[str]
    authority: str | None
    """Folder of the authority that signs for intercepted hosts; None: this process is no proxy for others."""
    cache: str | None
    """Folder of kept responses of allowed hosts."""
    keep_raw: bool
    rules: Any
    """As `clawexp.rule.written` gives them."""


def main() -> None:
    """Serve until the driver or a signal ends it."""
    config = ProxyConfig(**read_settings())
    # What is read or encoded in a thread takes its turns with the loop, which gets its own at least so soon.
    sys.setswitchinterval(SWITCH_S)
    widen()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        uvloop.run(serve(config))  # by a tenth less work than with the loop of the standard library
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
            sampler=Sampler(engine, rendering.stop_ids, config.engine_patience_s),
            rules=Rules(read(config.rules)),
        )
        service = CaptureService(caller, config.max_calls, config.fsync, config.keep_raw)
        passages = Passages(service.rollouts, config.allow_hosts, proxying=config.authority is not None)
        addon = CaptureAddon(service, passages, Upstream(Path(config.cache) if config.cache else None))
        proxy, servers = _proxy(addon, config.authority)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, proxy.shutdown)
        async with asyncio.TaskGroup() as group:
            group.create_task(proxy.run())
            await addon.serving.wait()
            (instance,) = servers.servers
            widen_backlog(instance)
            async with (
                unix_socket(Path(config.socket), instance),
                admin_socket(Path(config.admin), config.admin_key, service),
            ):
                addon.garbage = Garbage()
                say_ready({"port": instance.listen_addrs[0][1], "rendering": rendering.digest})
                await proxy.should_exit.wait()


def _proxy(addon: CaptureAddon, authority: str | None) -> tuple[master.Master, proxyserver.Proxyserver]:
    """A bare mitmproxy: the addons that it cannot do without, and ours.

    In its regular mode it takes both requests to itself, from harnesses that have its URL, and requests through it.
    """
    settings = options.Options(listen_host="127.0.0.1", listen_port=0, mode=["regular"], http2=False)
    proxy = master.Master(settings, event_loop=asyncio.get_running_loop(), with_termlog=False)
    proxy.addons = Listeners(proxy)
    servers = proxyserver.Proxyserver()
    proxy.addons.add(core.Core(), servers, next_layer.NextLayer(), errorcheck.ErrorCheck())
    if authority is not None:
        proxy.options.update(confdir=authority, ssl_verify_upstream_trusted_ca=str(system_roots()))
        proxy.addons.add(tlsconfig.TlsConfig())
    proxy.addons.add(addon)
    # A connection goes out only with a request, and carries nothing that is not looked at.
    proxy.options.update(connection_strategy="lazy", upstream_cert=False, rawtcp=False, websocket=False)
    return proxy, servers


if __name__ == "__main__":
    main()
