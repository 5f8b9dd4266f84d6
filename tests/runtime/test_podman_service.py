import asyncio
import gc
import os
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.runtime.podman_service import service
from clawexp.runtime.process import to_the_end
from clawexp.scratch import scratch_root


async def test_a_service_answers_and_leaves_nothing() -> None:
    async with service([], []) as alive:
        found = await alive.call("tell of itself", alive.client.info)
        assert found["host"]["security"]["rootless"] is True
        assert found["store"]["graphDriverName"] == "overlay"
        assert found["store"]["imageStore"]["number"] == 0
        (mine,) = [path for path in scratch_root().glob("podman-*") if path.name in found["store"]["graphRoot"]]
        pid = alive.running.pid
        with pytest.raises(RuntimeFault, match="podman could not find it: 404"):
            await alive.call("find it", alive.client.containers.get, "none")
    assert not mine.exists()
    assert not Path(f"/proc/{pid}").exists()


async def test_a_service_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"did not start: .*/none"):
        async with service([tmp_path / "none"], [tmp_path / "none"]):
            pass


@pytest.mark.filterwarnings("ignore:.*UDSSocket")  # podman-py leaves its socket open where it cannot connect
async def test_a_service_that_dies_is_told_by_the_next_request() -> None:
    async with service([], []) as alive:
        os.kill(alive.running.pid, 15)
        await alive.running.ended()
        with pytest.raises(RuntimeFault, match="podman could not tell of itself"):
            await alive.call("tell of itself", alive.client.info)
    gc.collect()


async def test_a_cancelled_request_is_first_brought_to_its_end() -> None:
    events = []

    async def work() -> None:
        await asyncio.sleep(0.2)
        events.append("done")

    async def caller() -> None:
        try:
            await to_the_end(work())
        finally:
            events.append("gone")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await caller()
    assert events == ["done", "gone"]
