"""A real harness against a scripted model -> its sketch. The script reads one file, writes another and ends."""

import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.dialects.openai_chat import OpenAIChat
from clawexp.capture.message import Answer, Message, ToolCall
from clawexp.errors import HarnessError
from clawexp.protocols import Harness, Runtime
from clawexp.records import Link, Owner, Sandbox, Task, Verdict
from clawexp.warmstart.sketch import INSTRUCTION, READ, WROTE, Sketch, sketch_of

SCRIPT = (
    Message(role="assistant", tool_calls=(ToolCall("read", {"path": READ[0]}, "call1"),)),
    Message(role="assistant", tool_calls=(ToolCall("write", {"path": WROTE[0], "content": WROTE[1]}, "call2"),)),
    Message(role="assistant", content="Done."),
)
MODEL = "tiny"
CONTEXT, MAX_TOKENS = 65536, 256


class _NoGrader:
    async def grade(self, sandbox: Sandbox) -> Verdict:
        raise AssertionError(f"the scripted task in {sandbox.id} is not graded")


TASK = Task(id="sketch", instruction=INSTRUCTION, files={READ[0]: READ[1].encode()}, grader=_NoGrader(), split="train")


class ScriptedModel:
    """Plays SCRIPT, whatever it is asked, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self._dialect = OpenAIChat()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        said = SCRIPT[min(len(self.requests), len(SCRIPT) - 1)]
        self.requests.append(json.loads(body))
        answer = Answer(
            id=f"answer{len(self.requests)}",
            created=1,
            message=said,
            finish="tool_calls" if said.tool_calls else "stop",
            prompt_tokens=100,
            sampled_tokens=10,
        )
        asked = Asked(method=request.method, path=request.path, query=request.query, headers=request.headers)
        reply = self._dialect.answer(self._dialect.read(asked, body), answer, MODEL)
        return web.Response(status=reply.status, body=reply.body, headers=dict(reply.headers))

    @asynccontextmanager
    async def serve(self, socket: Path) -> AsyncIterator[int]:
        """Answer on a unix socket and on a port of loopback; the port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(socket)).start()
            socket.chmod(0o666)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield runner.addresses[1][1]
        finally:
            await runner.cleanup()


async def record(name: str, harness: Harness, runtime: Runtime) -> Sketch:
    """The sketch of one harness. Raises HarnessError when it does not follow the script."""
    model = ScriptedModel()
    with tempfile.TemporaryDirectory(prefix="clawexp-sketch-") as folder:
        root = Path(folder)
        root.chmod(0o711)
        async with model.serve(root / "model") as port:
            owner = Owner(run_id="sketch", rollout_id=name, root=root, proxy_socket=root / "model", proxy_port=port)
            async with runtime.sandbox(TASK, harness.needs(), owner) as sandbox:
                launch = harness.launch(TASK, _link(sandbox), sandbox)
                await sandbox.put(launch.files)
                finished = await sandbox.run(launch.command)
    if len(model.requests) != len(SCRIPT):
        tail = finished.stderr.decode(errors="replace")[-600:]
        raise HarnessError(f"{name} made {len(model.requests)} calls of a script of {len(SCRIPT)}: {tail}")
    return sketch_of(name, model.requests[-1])


def _link(sandbox: Sandbox) -> Link:
    return Link(
        url=sandbox.facts["proxy_url"],
        socket=sandbox.facts["proxy_socket"],
        key="sk-sketch",
        model=MODEL,
        context=CONTEXT,
        max_tokens=MAX_TOKENS,
    )
