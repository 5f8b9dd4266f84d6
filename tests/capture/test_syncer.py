import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from clawexp.capture import syncer
from clawexp.capture.syncer import Syncer


@pytest.fixture
def files(tmp_path: Path) -> list[int]:
    return [os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT) for number in range(5)]


async def test_those_who_come_while_the_disk_is_busy_go_together(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[int]] = []
    busy, free = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(batch: Sequence[int]) -> list[OSError | None]:
        batches.append(list(batch))
        loop.call_soon_threadsafe(busy.set)
        assert free.wait(30)
        return [None] * len(batch)

    monkeypatch.setattr(syncer, "_sync", slowly)
    shared = Syncer()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shared.sync(file)) for file in files]
        await busy.wait()
        assert not any(task.done() for task in tasks)
        tasks[2].cancel()
        free.set()
    assert batches == [files[:1], files[1:]]


async def test_a_file_that_cannot_be_synced_fails_alone(files: list[int]) -> None:
    os.close(files[1])
    shared = Syncer()
    done = await asyncio.gather(*[shared.sync(file) for file in files], return_exceptions=True)  # noqa: TID251
    assert [type(each) for each in done] == [type(None), OSError, *[type(None)] * 3]
    await shared.sync(files[0])
