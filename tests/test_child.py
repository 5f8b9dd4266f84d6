"""Child processes that serve, over a small real one."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from clawexp.child import ChildOptions, child
from clawexp.errors import EngineError

PROGRAM = """
import os, sys, time
from clawexp.child import read_settings, say_ready
settings = read_settings()
print("it begins", file=sys.stderr, flush=True)
if settings["what"] == "dies":
    sys.exit("it cannot")
if settings["what"] == "is slow":
    time.sleep(600)
say_ready({"pid": os.getpid(), "word": settings["word"], "extra": os.environ.get("EXTRA")})
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served_program.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def options(tmp_path: Path, start_s: float = 60.0) -> ChildOptions:
    return ChildOptions(
        name="server",
        module="served_program",
        log=tmp_path / "logs" / "server.log",
        start_s=start_s,
        fault=EngineError,
        environment={"EXTRA": "more"},
    )


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_it_gets_its_settings_by_stdin_says_that_it_is_ready_and_ends_with_the_context(tmp_path: Path) -> None:
    async with child(options(tmp_path), {"what": "serve", "word": "a secret"}) as server:
        assert (server.ready["word"], server.ready["extra"]) == ("a secret", "more")
        pid = server.ready["pid"]
        assert b"a secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert not alive(pid)
    assert (tmp_path / "logs" / "server.log").read_text() == "it begins\n"


async def test_one_that_dies_at_its_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"the server died at its start; .*server.log ends with:\nit begins\nit cannot"
    ):
        async with child(options(tmp_path), {"what": "dies"}):
            pass


async def test_one_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the server was not ready within 3 s"):
        async with child(options(tmp_path, start_s=3.0), {"what": "is slow"}):
            pass


async def killed(tmp_path: Path, work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(30), child(options(tmp_path), {"what": "serve", "word": ""}) as server:
        os.kill(server.ready["pid"], signal.SIGKILL)
        await work


async def waiting() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise EngineError("it does not answer")


@pytest.mark.parametrize("work", [waiting, failing])
async def test_work_ends_with_the_cause_when_the_process_dies(
    tmp_path: Path, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    with pytest.raises(EngineError, match=r"the server died \(exit status -9\)"):
        await killed(tmp_path, work())


async def test_a_timeout_of_the_work_itself_is_no_death(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with child(options(tmp_path), {"what": "serve", "word": ""}), asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def test_a_fault_of_a_live_one_is_left_as_it_is(tmp_path: Path) -> None:
    async with child(options(tmp_path), {"what": "serve", "word": ""}) as server:
        with pytest.raises(EngineError, match=r"^it does not answer$"):
            async with server.cause_of_death():
                raise EngineError("it does not answer")


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from clawexp.child import ChildOptions, child
        from clawexp.errors import EngineError

        async def main():
            log = Path(sys.argv[1])
            options = ChildOptions(
                name="server", module="served_program", log=log, start_s=60, fault=EngineError, environment={}
            )
            async with child(options, {"what": "serve", "word": ""}) as server:
                print(server.ready["pid"], flush=True)
                await asyncio.sleep(600)

        asyncio.run(main())
        """
    )
    driver = subprocess.Popen([sys.executable, "-c", parent, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    with driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert alive(pid)
        driver.kill()
    limit = time.monotonic() + 10
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not alive(pid)
