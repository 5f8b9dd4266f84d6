"""Starting, watching and ending vLLM, over a program that stands in its place."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from clawexp.child import ChildOptions, child
from clawexp.errors import EngineError

INTERPRETER = """\
#!{python}
import os, pathlib, signal, subprocess, sys, tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers["Authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]
        self.send_response(200 if known and self.path == "/health" else 401)
        self.end_headers()

print("words", *sys.argv[1:], flush=True)
if "--dies" in sys.argv:
    for process in ("Worker", "EngineCore"):
        print(f"({process} pid=7) ERROR 11-29 23:29:18 [executor.py:63]     raise ValueError(", flush=True)
        print(f"({process} pid=7) ERROR 11-29 23:29:18 [executor.py:63] ValueError: {process} is short", flush=True)
    print("more words " * 1000, flush=True)
    sys.exit("it cannot")
if "--slow" not in sys.argv:
    worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    pids = [os.getpid(), subprocess.Popen([sys.executable, "-c", worker]).pid]
    scratch = tempfile.mkdtemp()
    pathlib.Path(os.environ["FACTS"]).write_text("\\n".join([*map(str, pids), scratch]))
port = int(next(word for word in sys.argv if word.startswith("--port=")).partition("=")[2])
server = HTTPServer(("127.0.0.1", port), Health)
if "--slow" in sys.argv:
    signal.pause()
server.serve_forever()
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """Runs none of vLLM, but serves its health."""
    file = tmp_path / "bin" / "python"
    file.parent.mkdir()
    file.write_text(INTERPRETER.replace("{python}", sys.executable))
    file.chmod(0o755)
    return file


def options(folder: Path, start_s: float = 60.0) -> ChildOptions:
    return ChildOptions(
        name="engine",
        module="clawexp.engine.vllm_server",
        log=folder / "engine.log",
        start_s=start_s,
        fault=EngineError,
        environment={},
    )


def settings(interpreter: Path, *arguments: str) -> Mapping[str, Any]:
    scratch = interpreter.with_name("scratch")
    scratch.mkdir()
    return {
        "python": str(interpreter),
        "arguments": arguments,
        "environment": {"FACTS": str(interpreter.with_name("facts"))},
        "key": "a secret",
        "log": str(interpreter.parents[1] / "engine.log"),
        "scratch": str(scratch),
    }


def started(interpreter: Path) -> tuple[list[int], Path]:
    """Processes of the stand-in, and its temporary folder."""
    *pids, scratch = interpreter.with_name("facts").read_text().splitlines()
    return [int(pid) for pid in pids], Path(scratch)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


async def test_it_is_ready_once_it_serves_and_all_of_it_ends_with_the_context(
    tmp_path: Path, interpreter: Path
) -> None:
    async with child(options(tmp_path), settings(interpreter, "--model=x")) as server:
        pids, scratch = started(interpreter)
        assert all(map(alive, pids))
        assert scratch.is_dir()
        assert server.ready["port"] > 0
    assert not any(map(alive, pids))
    assert not scratch.exists()
    log = (tmp_path / "engine.log").read_text()
    assert "words -m vllm.entrypoints.openai.api_server --host=127.0.0.1 --port=" in log
    assert "--model=x" in log
    assert "a secret" not in log


async def test_one_that_dies_at_its_start_is_reported_with_its_last_words(tmp_path: Path, interpreter: Path) -> None:
    with pytest.raises(
        EngineError,
        match=r"the engine died at its start; (?s:.*)it cannot\nvLLM ended with status 1; .* ValueError: Worker is",
    ):
        async with child(options(tmp_path), settings(interpreter, "--dies")):
            pass


async def test_one_that_is_never_healthy_is_ended(tmp_path: Path, interpreter: Path) -> None:
    with pytest.raises(EngineError, match="the engine was not ready within 5 s"):
        async with child(options(tmp_path, start_s=5.0), settings(interpreter, "--slow")):
            pass


async def dying(tmp_path: Path, interpreter: Path, left: list[Any]) -> None:
    """Serve, and lose vLLM; `left` gets its worker and its folder."""
    async with child(options(tmp_path), settings(interpreter)):
        (serving, worker), scratch = started(interpreter)
        left += [worker, scratch]
        os.kill(serving, signal.SIGKILL)
        await asyncio.Event().wait()


async def test_one_that_dies_later_leaves_nothing_and_is_the_cause_of_what_then_fails(
    tmp_path: Path, interpreter: Path
) -> None:
    left: list[Any] = []
    with pytest.raises(EngineError, match=r"the engine died (?s:.*)vLLM ended with status -9"):
        await dying(tmp_path, interpreter, left)
    worker, scratch = left
    assert not alive(worker)
    assert not scratch.exists()


async def unwatched(tmp_path: Path, interpreter: Path, pids: list[int]) -> None:
    """Serve, and lose the one that watches vLLM; `pids` gets its processes."""
    async with child(options(tmp_path), settings(interpreter)) as server:
        pids += started(interpreter)[0]
        server.process.kill()
        await asyncio.Event().wait()


async def test_all_of_it_ends_with_the_context_though_the_one_that_watches_was_killed(
    tmp_path: Path, interpreter: Path
) -> None:
    pids: list[int] = []
    with pytest.raises(EngineError, match="died"):
        await unwatched(tmp_path, interpreter, pids)
    await asyncio.to_thread(wait_for, lambda: not any(map(alive, pids)))


def test_all_of_it_ends_with_a_driver_that_is_killed(tmp_path: Path, interpreter: Path) -> None:
    program = textwrap.dedent(
        """
        import asyncio, json, sys
        from pathlib import Path
        from clawexp.child import ChildOptions, child
        from clawexp.errors import EngineError

        async def main():
            options = ChildOptions(
                name="engine", module="clawexp.engine.vllm_server", log=Path(sys.argv[1]), start_s=60,
                fault=EngineError, environment={},
            )
            async with child(options, json.loads(sys.argv[2])) as server:
                print("ready", flush=True)
                await asyncio.sleep(600)

        asyncio.run(main())
        """
    )
    words = [sys.executable, "-c", program, str(tmp_path / "engine.log"), json.dumps(settings(interpreter))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        driver.kill()
    pids, scratch = started(interpreter)
    wait_for(lambda: not any(map(alive, pids)) and not scratch.exists())


def test_all_of_it_ends_when_it_is_asked_more_than_once(tmp_path: Path, interpreter: Path) -> None:
    given = json.dumps({"parent": os.getpid(), "settings": settings(interpreter)})
    (tmp_path / "engine.log").touch()
    words = [sys.executable, "-m", "clawexp.engine.vllm_server"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as watching:
        assert watching.stdin is not None
        assert watching.stdout is not None
        watching.stdin.write(given.encode())
        watching.stdin.close()
        assert watching.stdout.readline()
        for _ in range(300):  # as a driver of many threads does, which dies thread by thread
            watching.send_signal(signal.SIGTERM)
    pids, scratch = started(interpreter)
    wait_for(lambda: not any(map(alive, pids)) and not scratch.exists())
