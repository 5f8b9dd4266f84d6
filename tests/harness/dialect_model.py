"""A scripted model in any dialect, told by the dialect that the project itself answers with."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from clawexp.capture.dialects.dialect import Asked, Dialect
from clawexp.capture.history import History, View
from clawexp.capture.message import Answer, Message, Refused, Request, ToolCall


@dataclass
class DialectModel:
    """Answers with `replies` in order, the last one for ever, and keeps what it was asked.

    A reply is a text, a list of `(tool, arguments)`, or what is refused.
    """

    dialect: Dialect
    replies: Sequence[str | list[tuple[str, Any]] | Refused]
    socket: Path
    requests: list[Request] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.Response:
        self.paths.add(f"{request.method} {request.path}")
        sent = Asked(method=request.method, path=request.path, query=request.query, headers=request.headers)
        self.keys.add(self.dialect.key(sent))
        body = await request.read()
        asked = self.dialect.read(sent, body)
        self.requests.append(asked)
        self.bodies.append(json.loads(body))
        reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
        if isinstance(reply, Refused):
            made = self.dialect.refuse(reply, stream=asked.stream)
        else:
            made = self.dialect.answer(asked, self._answer(reply), "scripted")
        return web.Response(status=made.status, body=made.body, headers=made.headers)

    def _answer(self, reply: str | list[tuple[str, Any]]) -> Answer:
        number = len(self.requests)
        text, calls = (reply, []) if isinstance(reply, str) else ("", reply)
        tool_calls = [ToolCall(name, arguments, f"call{number}t{i}") for i, (name, arguments) in enumerate(calls)]
        return Answer(
            id=f"call{number}",
            created=0,
            message=Message(role="assistant", content=text, tool_calls=tuple(tool_calls)),
            finish="tool_calls" if calls else "stop",
            prompt_tokens=90,
            sampled_tokens=10,
        )

    def views(self) -> list[View]:
        """What it was asked, by meaning."""
        history = History()
        return [history.view(request) for request in self.requests]


ServedDialect = Callable[..., AbstractAsyncContextManager[DialectModel]]
