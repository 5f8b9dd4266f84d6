"""Places on hosts: who has the next one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from clawexp.errors import RuntimeFault
from clawexp.runtime.placement import Placer, Placing


@contextlib.asynccontextmanager
async def taken(placer: Placer, *kinds: str) -> AsyncIterator[list[str]]:
    """The hosts of a place for each."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(placer.place(kind)) for kind in kinds]


async def line(placer: Placer, *kinds: str) -> list[tuple[str, asyncio.Task[str]]]:
    """Ask for places that are given back at once; in the order of asking."""

    async def ask(kind: str) -> str:
        async with placer.place(kind) as name:
            return name

    tasks = [(kind, asyncio.ensure_future(ask(kind))) for kind in kinds]
    await asyncio.sleep(0)
    return tasks


async def test_spreading_takes_the_host_that_is_used_least_by_its_share():
    async with taken(Placer({"a": 4, "b": 2}, "spread"), *"xxxxxx") as hosts:
        assert sorted(hosts[:3]) == ["a", "a", "b"]
        assert sorted(hosts) == ["a"] * 4 + ["b"] * 2


async def test_filling_leaves_a_host_free_as_long_as_it_can():
    async with taken(Placer({"a": 3, "b": 3}, "fill"), *"xxxx") as hosts:
        assert hosts == ["a", "a", "a", "b"]


@pytest.mark.parametrize("placing", ["fill", "spread"])
async def test_a_host_that_has_had_the_kind_is_preferred(placing: Placing):
    placer = Placer({"a": 9, "b": 9, "c": 9}, placing)
    async with taken(placer, "x", "y", "z") as first, taken(placer, *"wwwwww"):
        pass
    async with taken(placer, "z", "y", "x") as again:
        assert again == first[::-1]


async def test_a_host_is_not_overcrowded_because_it_has_had_the_kind():
    placer = Placer({"a": 16, "b": 16}, "spread")
    async with taken(placer, *"x" * 8):
        placer.hosts["b"].ready.clear()
        placer.hosts["a"].ready["x"] = 16
        async with taken(placer, *"x" * 8) as hosts:
            assert hosts.count("a") in (4, 5, 6)


async def test_who_waits_is_served_in_order_wherever_the_next_place_is():
    placer, order = Placer({"a": 1, "b": 1}, "spread"), []

    async def hold(number: int) -> None:
        async with placer.place(number % 3):
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(hold(number))
    assert order == list(range(50))
    assert [host.taken for host in placer.hosts.values()] == [0, 0]


async def test_who_stops_waiting_takes_no_place_even_in_the_moment_of_being_served():
    placer = Placer({"a": 1}, "spread")
    async with taken(placer, "x"):
        (_, gone), (_, served), (_, last) = await line(placer, "x", "y", "z")
        gone.cancel()
    served.cancel()  # its turn has come, and it has not run since
    assert await last == "a"
    await asyncio.wait([gone, served])
    assert placer.hosts["a"].taken == 0


async def test_nothing_is_placed_on_a_drained_host_until_it_is_restored():
    placer = Placer({"a": 1, "b": 1}, "spread")
    placer.drain("a", "it is gone")
    async with taken(placer, "x") as hosts:
        assert hosts == ["b"]
        ((_, waiting),) = await line(placer, "x")
        assert not waiting.done()
        placer.restore("a")
        assert await waiting == "a"


async def test_without_a_host_it_says_why_to_those_who_ask_and_those_who_wait():
    placer = Placer({"a": 1, "b": 1}, "spread")
    async with taken(placer, "x", "x"):
        ((_, waiting),) = await line(placer, "x")
        placer.drain("a", "it is gone")
        assert not waiting.done()
        placer.drain("b", "no route")
        for asked in (waiting, (await line(placer, "x"))[0][1]):
            with pytest.raises(RuntimeFault, match="a: it is gone; b: no route"):
                await asked
