"""A scripted model in the OpenAI chat dialect, and what the tests of this room share."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from aiohttp import web
from hydra.utils import instantiate
from omegaconf import OmegaConf

from clawexp.protocols import Harness
from clawexp.records import Finished, Sandbox, Verdict

KEY = "secret-key-of-this-rollout"
CONF = Path(__file__).parents[2] / "conf/harness"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A reply with one tool call."""
    return {"calls": [(name, json.dumps(arguments, separators=(",", ":")))]}


@dataclass
class ScriptedModel:
    """Answers with `replies` in order, the last one for ever, and keeps what it was asked.

    A reply is a text, `{"calls": [(name, arguments)]}`, or `{"status": 400, "body": {...}}`; `tokens` beside them is
    the usage that is reported.
    """

    replies: Sequence[Any]
    socket: Path
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers.get("Authorization"))
        reply = self.replies[min(len(self.bodies), len(self.replies)) - 1]
        if isinstance(reply, str):
            reply = dict[str, Any](text=reply)
        if "status" in reply:
            return web.json_response(reply["body"], status=reply["status"])
        chat = self._chat(reply, len(self.bodies))
        return await self._stream(request, chat) if body.get("stream") else web.json_response(chat)

    def _chat(self, reply: dict[str, Any], number: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.get("text")}
        if "calls" in reply:
            message["tool_calls"] = [
                {"id": f"call{number}x{i}", "type": "function", "function": {"name": name, "arguments": text}}
                for i, (name, text) in enumerate(reply["calls"])
            ]
        tokens = reply.get("tokens", 100)
        return {
            "id": f"chat{number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "scripted",
            "choices": [
                {"index": 0, "message": message, "finish_reason": "tool_calls" if "calls" in reply else "stop"}
            ],
            "usage": {"prompt_tokens": tokens - 10, "completion_tokens": 10, "total_tokens": tokens},
        }

    async def _stream(self, request: web.Request, chat: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        choice = chat["choices"][0]
        for delta in _deltas(choice["message"]):
            await self._event(response, chat, [{"index": 0, "delta": delta, "finish_reason": None}])
        last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        await self._event(response, chat, [last])
        await self._event(response, chat, [], usage=chat["usage"])
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(
        self, response: web.StreamResponse, chat: dict[str, Any], choices: list[dict[str, Any]], **more: Any
    ) -> None:
        event = {**chat, "object": "chat.completion.chunk", "choices": choices, "usage": None, **more}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())


def _deltas(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message in pieces, as a server streams it."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    text = message["content"] or ""
    deltas += [{"content": text[start : start + 5]} for start in range(0, len(text), 5)]
    for index, each in enumerate(message.get("tool_calls", ())):
        name, arguments = each["function"]["name"], each["function"]["arguments"]
        head = {**each, "index": index, "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        for start in range(0, len(arguments), 7):
            piece = {"index": index, "function": {"arguments": arguments[start : start + 7]}}
            deltas.append({"tool_calls": [piece]})
    return deltas


Served = Callable[..., AbstractAsyncContextManager[ScriptedModel]]


def option(name: str, **changes: Any) -> Harness:
    """The harness of one option file, with some of its values changed."""
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), OmegaConf.create(changes))
    return instantiate(config, _convert_="all")


class AnyGrader:
    """Every result is right."""

    async def grade(self, sandbox: Sandbox) -> Verdict:
        return Verdict(score=1.0)


@dataclass(frozen=True)
class Attempt:
    """What one rollout left."""

    finished: Finished
    files: dict[str, bytes]
    counts: dict[str, float]


Attempted = Callable[..., Awaitable[Attempt]]


def is_append_only(bodies: Sequence[dict[str, Any]]) -> bool:
    """Whether every request begins with the messages and has the tools of the one before it."""
    pairs = pairwise(bodies)
    return all(
        later["messages"][: len(earlier["messages"])] == earlier["messages"]
        and later.get("tools") == earlier.get("tools")
        for earlier, later in pairs
    )
