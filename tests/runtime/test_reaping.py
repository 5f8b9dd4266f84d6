import asyncio
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from clawexp.runtime.label import new_label, write_label
from clawexp.runtime.reaper import sweep_expired
from clawexp.runtime.reaping import reaping
from clawexp.scratch import scratch_folder, scratch_root

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Processes = Callable[[str], list[int]]
DRIVER = """
import asyncio, subprocess
from clawexp.runtime.reaping import reaping
from clawexp.scratch import scratch_folder

async def main():
    async with reaping() as reaper:
        with scratch_folder("run-") as folder:
            subprocess.Popen(["sleep", "246813"], env={"HOME": str(folder / "r/home")}, start_new_session=True)
            print(reaper.pid, folder, flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The scratch root of this test and of the programs that it starts."""
    with tempfile.TemporaryDirectory(prefix="cx-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield scratch_root()


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for a condition; a hang fails."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is outside of this program
            await asyncio.sleep(0.05)


async def test_what_a_killed_driver_leaves_is_gone_soon_and_the_reaper_with_it(
    scratch: Path, processes: Processes
) -> None:
    driver = await asyncio.create_subprocess_exec(sys.executable, "-c", DRIVER, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    reaper, folder = (await driver.stdout.readline()).decode().split()
    assert Path(folder).is_dir()
    driver.kill()
    await driver.wait()
    await until(lambda: not Path(folder).exists() and processes("246813") == [])
    await until(lambda: not Path("/proc", reaper).exists())


async def test_a_reaper_that_dies_is_started_again_and_ends_with_its_driver(scratch: Path) -> None:
    async with reaping() as reaper:
        first = reaper.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: reaper.pid != first)
        second = reaper.pid
        assert Path("/proc", str(second)).exists()
    assert not Path("/proc", str(second)).exists()


def test_a_sandbox_whose_time_is_over_is_ended_though_its_driver_lives(scratch: Path, processes: Processes) -> None:
    with scratch_folder("run-") as root:
        for name, lasts in (("old", -1), ("new", 1000)):
            (root / name).mkdir()
            label = new_label(root.name, name, "local")
            write_label(root / name, replace(label, expires=label.made + lasts))
        assert json.loads((root / "new/label.json").read_text())["expires"] == asdict(label)["expires"] + 1000 - 86_400
        env = {"HOME": str(root / "old/home")}
        with subprocess.Popen(["sleep", "135792"], env=env) as old, subprocess.Popen(["sleep", "135793"]) as other:
            assert sweep_expired(scratch) == 1
            assert old.wait(60) == -signal.SIGKILL
            assert other.poll() is None
            other.kill()
        assert [path.name for path in sorted(root.iterdir())] == ["new", "owner"]


async def test_nothing_is_left_after_a_kill_of_a_service_or_of_a_driver_with_its_reaper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of those that `benchmarks/kill_sandbox.py` makes."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    kill = importlib.import_module("kill_sandbox")
    kill.RUNTIMES["podman"].prepare()
    with tempfile.TemporaryDirectory(prefix="kx-") as folder:
        for name, victim in (("podman", "service"), ("podman", "driver and reaper")):
            await kill.kill_once(name, victim, Path(folder), random.Random(0))
