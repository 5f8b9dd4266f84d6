"""The driver's side: a process that starts, ends and dies as it should."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import openai
import pytest
from stub_engine import StubEngine, model_of, options_of, serve_stub

from clawexp.capture.boundary import boundary
from clawexp.capture.journal import read_calls
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import CaptureError, ConfigError


async def ended(pid: int) -> bool:
    """Whether the process is gone within ten seconds."""
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return True
        await asyncio.sleep(0.1)
    return False


async def killed(engine: StubEngine, checkpoint: Path, folder: Path) -> None:
    """Three calls, and the end of the process that served them."""
    async with boundary(options_of(), model_of(checkpoint), engine.url, "secret", folder) as live:
        assert len(str(live.door("r").socket)) < 108
        (folder / "sockets").write_text(str(live.sockets))
        key = await live.open("r", seed=1, temperature=0.5)
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{live.door('r').port}/v1", api_key=key) as client:
            for turn in range(3):
                await client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": f"Turn {turn}"}]
                )
        pid = (await live.stats())[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        await live.close("r")
        await asyncio.Event().wait()


async def test_kill_9_of_the_process_leaves_the_journal_whole_and_says_what_happened(
    tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path
) -> None:
    # Deeper than the path of a socket may be.
    folder = tmp_path / ("deep" * 20)
    async with serve_stub(tokenizer) as engine:
        with pytest.raises(CaptureError, match=r"the capture process died \(exit status -9\).*capture\.log"):
            await killed(engine, checkpoint, folder)
    calls = read_calls(folder / "calls/r.log")
    assert [call.position for call in calls] == [0, 1, 2]
    assert {call.submitted["temperature"] for call in calls} == {0.5}
    assert not Path((folder / "sockets").read_text()).exists()


async def test_the_process_ends_with_its_context(tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path) -> None:
    async with (
        serve_stub(tokenizer) as engine,
        boundary(options_of(), model_of(checkpoint), engine.url, "secret", tmp_path) as live,
    ):
        pid = (await live.stats())[0]["pid"]
        await live.open("r", seed=1)
        with pytest.raises(CaptureError, match="open already"):
            await live.open("r", seed=1)
        await live.close("r")
        with pytest.raises(CaptureError, match="not open"):
            await live.close("r")
    assert not Path(f"/proc/{pid}").exists()
    assert (tmp_path / "capture.log").read_text() == ""


async def test_a_process_that_cannot_start_says_why(tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CaptureError, match=r"no tokenizer\.json"):
        async with boundary(options_of(), model_of(tmp_path), "http://127.0.0.1:9", "secret", tmp_path / "run"):
            pass


async def test_a_checkpoint_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone"):
        async with boundary(options_of(), model_of(tmp_path / "gone"), "http://127.0.0.1:9", "secret", tmp_path):
            pass


async def test_the_process_dies_with_a_killed_driver(checkpoint: Path, tmp_path: Path) -> None:
    program = (
        "import asyncio, json, sys\n"
        "from pathlib import Path\n"
        "from clawexp.capture.boundary import boundary\n"
        "from stub_engine import model_of, options_of\n"
        "async def main():\n"
        "    folder = Path(sys.argv[2])\n"
        "    model = model_of(Path(sys.argv[1]))\n"
        "    async with boundary(options_of(), model, 'http://127.0.0.1:9', 'k', folder) as live:\n"
        "        print(json.dumps(dict((await live.stats())[0])), flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(checkpoint), str(tmp_path), stdout=asyncio.subprocess.PIPE, env=env
    )
    assert driver.stdout is not None
    async with asyncio.timeout(60):
        pid = json.loads(await driver.stdout.readline())["pid"]
    driver.kill()
    await driver.wait()
    assert await ended(pid)
