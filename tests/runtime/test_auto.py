import logging
from collections.abc import Callable

import pytest

from clawexp.records import Needs, Owner, Task
from clawexp.runtime import auto, bubblewrap
from clawexp.runtime.auto import Auto

Owners = Callable[..., Owner]
RUNTIME = Auto(
    file_bytes=1000, memory_mb=1000, cpus=2.0, pids=200, disk_mb=500, require_limits=False, allow_unsafe=False
)


async def test_bubblewrap_is_chosen_where_it_works(task: Task, owner: Owners):
    async with RUNTIME.sandbox(task, Needs(), owner()) as sandbox:
        assert sandbox.facts["runtime"] == "bubblewrap"


async def test_without_bubblewrap_it_warns_once_and_goes_on(
    task: Task, owner: Owners, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("PATH", "/nonexistent")
    bubblewrap.unavailable.cache_clear()
    auto.warn.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                async with RUNTIME.sandbox(task, Needs(trusted=True), owner()) as sandbox:
                    assert sandbox.facts["isolation"] == "none"
    finally:
        bubblewrap.unavailable.cache_clear()
    assert [record.getMessage().count("no bwrap in PATH") for record in caplog.records] == [1]
