"""Runs verifiers' interception server, in its own environment: `python verifiers_server.py ENGINE CHECKPOINT SESSIONS`.

It prints its URL and the keys of so many rollouts for each dialect, and serves until it is killed.
"""
# pyright: reportMissingImports=false

import asyncio
import json
import logging
import sys

from renderers.configs import Qwen3RendererConfig
from verifiers.v1.clients import EvalClientConfig, ModelContext, TrainClientConfig
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

MODEL = "stub"


def sessions(client: EvalClientConfig | TrainClientConfig, number: int) -> list[RolloutSession]:
    """Rollouts that have just begun."""
    context = ModelContext(model=MODEL, client=client)
    agent = AgentInfo(config=AgentConfig())
    return [
        RolloutSession(ctx=context, trace=Trace(task=TraceTask(type="Task", data=TaskData(idx=i)), agent=agent))
        for i in range(number)
    ]


async def serve(engine: str, checkpoint: str, number: int) -> None:
    rendering = Qwen3RendererConfig(enable_thinking=False, thinking_retention="all")
    train = TrainClientConfig(base_url=engine, renderer=rendering, renderer_model_name=checkpoint)
    relay = EvalClientConfig(base_url=engine)
    async with InterceptionServer() as server:
        keys = {
            dialect: [server.register(session)[0] for session in sessions(client, number)]
            for dialect, client in (("chat", train), ("anthropic", relay))
        }
        print(json.dumps({"url": server.base_url, "keys": keys}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.disable(logging.INFO)
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
