import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clawexp.records import Finished
from clawexp.runtime import disk
from clawexp.runtime.disk import DiskBound

DONE = Finished(code=0, stdout=b"out", stderr=b"", wall_s=0.0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every now and then."""
    monkeypatch.setattr(disk, "SOONEST_S", 0.05)


async def finish() -> Finished:
    await asyncio.sleep(0.2)
    return DONE


async def never() -> Finished:
    await asyncio.sleep(600)
    return DONE


async def test_work_within_the_bound_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert await DiskBound(folder=tmp_path, size=1 << 20).keep([], finish()) == DONE


async def test_work_beyond_the_bound_is_ended_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/file").write_bytes(b"x" * (3 << 20))
    done = await DiskBound(folder=tmp_path, size=1 << 20).keep([], never())
    assert (done.code, done.timed_out) == (-signal.SIGKILL, False)
    assert done.stderr == b"disk full: more than 1 MB were written in this sandbox\n"


async def test_an_error_of_the_work_stays_what_it_is(tmp_path: Path) -> None:
    async def fail() -> Finished:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await DiskBound(folder=tmp_path, size=1 << 20).keep([], fail())


def test_files_without_a_name_count_where_the_processes_are_known(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "box").mkdir()
    bound = DiskBound(folder=tmp_path / "box", size=1)
    with (tmp_path / "box/gone").open("wb") as file:
        (tmp_path / "box/gone").unlink()
        file.write(b"x" * (2 << 20))
        file.flush()
        os.fsync(file.fileno())
        assert bound.used([]) < 1 << 20
        (tmp_path / "group/cgroup.procs").write_text(f"{os.getpid()}\n999999999\n")
        assert bound.used([tmp_path / "group", tmp_path / "none"]) >= 2 << 20


def test_one_file_cannot_grow_beyond_the_bound(tmp_path: Path) -> None:
    program = "import resource, sys; input(); print(resource.getrlimit(resource.RLIMIT_FSIZE))"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as child:
        DiskBound(folder=tmp_path, size=4096).admit(child.pid)
        assert child.communicate(b"\n")[0] == b"(4096, 4096)\n"
    DiskBound(folder=tmp_path, size=4096).admit(child.pid)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096
