"""The driver's side door of a capture process: a unix socket of mode 0600 on which rollouts are opened and closed.

It has a key as well, since without isolation a harness runs as the same user.
"""

import hmac
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from clawexp.capture.open_rollout import Opening
from clawexp.capture.service import CaptureService
from clawexp.errors import ClawexpError


class Admin:
    """`POST /open`, `POST /close`, `GET /stats`; JSON both ways, an error as `{"error": ...}` with status
    409, and 401 without the key."""

    def __init__(self, service: CaptureService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/open", self.open), web.post("/close", self.close), web.get("/stats", self.stats)]

    async def open(self, request: web.Request) -> web.Response:
        asked: dict[str, Any] = await request.json()
        try:
            await self._service.open(Opening(**{**asked, "journal": Path(asked["journal"])}))
        except ClawexpError as error:
            return web.json_response({"error": str(error)}, status=409)
        return web.json_response({})

    async def close(self, request: web.Request) -> web.Response:
        asked: dict[str, Any] = await request.json()
        try:
            return web.json_response(await self._service.close(asked["rollout_id"]))
        except ClawexpError as error:
            return web.json_response({"error": str(error)}, status=409)

    async def stats(self, _request: web.Request) -> web.Response:
        rollouts = self._service.rollouts.values()
        return web.json_response(
            {
                "pid": os.getpid(),
                "torch": "torch" in sys.modules,
                "rollouts": len(rollouts),
                "in_flight": sum(rollout.in_flight for rollout in rollouts),
                "cpu_s": time.process_time(),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )


def _guard(key: str) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            return web.json_response({"error": "the key of the capture process is wrong"}, status=401)
        return await handler(request)

    return guard


@asynccontextmanager
async def admin_socket(path: Path, key: str, service: CaptureService) -> AsyncIterator[None]:
    """Serve the driver, who has `key`, on `path`."""
    app = web.Application(middlewares=[_guard(key)])
    app.add_routes(Admin(service).routes())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        # Bound under this mask, the socket is never open to others, not even for a moment.
        mask = os.umask(0o177)
        try:
            await web.UnixSite(runner, str(path)).start()
        finally:
            os.umask(mask)
        yield
    finally:
        await runner.cleanup()
