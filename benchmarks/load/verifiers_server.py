"""Runs verifiers' interception server, in its own environment: `python verifiers_server.py ENGINE CHECKPOINT`.

It prints its URL and one at which rollouts are opened, and serves until it is killed.
"""
# pyright: reportMissingImports=false

import asyncio
import json
import logging
import sys

from aiohttp import web
from renderers.configs import Qwen3RendererConfig
from verifiers.v1.clients import EvalClientConfig, ModelContext, TrainClientConfig
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

MODEL = "stub"


class Rollouts:
    """Opens them, `POST /DIALECT`; the answer is the rollout's key."""

    def __init__(self, server: InterceptionServer, clients: dict[str, EvalClientConfig | TrainClientConfig]) -> None:
        self._server = server
        self._clients = clients
        self._agent = AgentInfo(config=AgentConfig())

    async def open(self, request: web.Request) -> web.Response:
        context = ModelContext(model=MODEL, client=self._clients[request.match_info["dialect"]])
        trace = Trace(task=TraceTask(type="Task", data=TaskData()), agent=self._agent)
        return web.Response(text=self._server.register(RolloutSession(ctx=context, trace=trace))[0])


async def serve(engine: str, checkpoint: str) -> None:
    rendering = Qwen3RendererConfig(enable_thinking=False, thinking_retention="all")
    train = TrainClientConfig(base_url=engine, renderer=rendering, renderer_model_name=checkpoint)
    async with InterceptionServer() as server:
        rollouts = Rollouts(server, {"chat": train, "anthropic": EvalClientConfig(base_url=engine)})
        app = web.Application()
        app.add_routes([web.post("/{dialect}", rollouts.open)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(json.dumps({"url": server.base_url, "rollouts": site.name}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.disable(logging.INFO)
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
