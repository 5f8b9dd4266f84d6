import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest

from clawexp.errors import RuntimeFault
from clawexp.runtime.pool import Pool, pool


class Works:
    """Makes things that can break, and counts them."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.alive: set[Thing] = set()
        self.at_once = self.most_at_once = 0

    @contextlib.asynccontextmanager
    async def make(self, kind: str) -> AsyncIterator["Thing"]:
        with self.busy():
            await asyncio.sleep(0.001)
            if kind == "never":
                raise RuntimeFault("it cannot be made")
            thing = Thing(self, f"{kind}{next(self.numbers)}")
        self.alive.add(thing)
        try:
            yield thing
        finally:
            with self.busy():
                await asyncio.sleep(0.001)
            self.alive.discard(thing)

    @contextlib.contextmanager
    def busy(self):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            self.at_once -= 1


class Thing:
    def __init__(self, works: Works, name: str) -> None:
        self.works, self.name, self.state = works, name, "new"


async def renew(thing: Thing) -> bool:
    with thing.works.busy():
        await asyncio.sleep(0.001)
    if thing.state == "poisoned":
        raise RuntimeFault("it does not end")
    worn = thing.state == "worn"
    thing.state = "new"
    return not worn


async def used(place: Pool[str, Thing], kind: str, state: str = "used", for_s: float = 0.01) -> str:
    async with place.leased(kind) as thing:
        assert thing.state == "new"
        thing.state = state
        await asyncio.sleep(for_s)
        return thing.name


async def settled(place: Pool[str, Thing]) -> None:
    while place._tasks:  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.001)


async def together(place: Pool[str, Thing], kind: str, number: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(used(place, kind))


async def test_what_comes_back_is_made_as_new_and_handed_out_again() -> None:
    works = Works()
    async with pool(works.make, renew, most=4, creators=2) as place:
        first = await used(place, "a")
        await settled(place)
        assert await used(place, "a") == first
        assert dict(place.counts) == {"warm": 1, "made": 1, "thrown_away": 0}
    assert works.alive == set()


async def test_as_many_are_kept_as_were_out_at_once_lately_and_no_more_than_the_most() -> None:
    works = Works()
    async with pool(works.make, renew, most=4, creators=2) as place:
        await together(place, "a", 3)
        await settled(place)
        assert len(works.alive) == 3
        await together(place, "a", 9)
        await settled(place)
        assert len(works.alive) == 4
        for _ in range(80):
            await used(place, "a", for_s=0)
            await settled(place)
        assert len(works.alive) == 1
    assert works.alive == set()


async def test_where_each_is_taken_as_soon_as_the_last_is_given_back_one_more_is_kept() -> None:
    works = Works()
    async with pool(works.make, renew, most=4, creators=2) as place:
        await used(place, "a")
        await used(place, "a")
        assert place.counts["warm"] == 0, "the first one is not ready yet"
        for _ in range(20):
            await used(place, "a")
        assert dict(place.counts) == {"warm": 20, "made": 2, "thrown_away": 0}


async def test_the_kind_that_nobody_asks_for_goes_first() -> None:
    works = Works()
    async with pool(works.make, renew, most=2, creators=2) as place:
        await used(place, "old")
        await settled(place)
        await together(place, "new", 2)
        await settled(place)
        assert {thing.name[:3] for thing in works.alive} == {"new"}


@pytest.mark.parametrize("state", ["poisoned", "worn"])
async def test_what_cannot_be_made_as_new_is_thrown_away_and_replaced(state: str) -> None:
    works = Works()
    async with pool(works.make, renew, most=4, creators=2) as place:
        first = await used(place, "a", state)
        await settled(place)
        assert [thing.name for thing in works.alive] != [first]
        assert len(works.alive) == 1
        assert place.counts["thrown_away"] == 1


async def test_few_are_made_at_once() -> None:
    works = Works()
    async with pool(works.make, renew, most=20, creators=3) as place:
        await together(place, "a", 20)
    assert works.most_at_once <= 3
    assert works.alive == set()


async def test_what_cannot_be_made_is_the_callers_error_alone() -> None:
    works = Works()
    async with pool(works.make, renew, most=4, creators=1) as place:
        with pytest.raises(RuntimeFault, match="cannot be made"):
            await used(place, "never")
        assert (await used(place, "a")).startswith("a")


async def test_an_error_of_the_caller_stays_what_it_is_and_one_that_nobody_foresaw_is_told() -> None:
    works = Works()
    with pytest.raises(KeyError):
        async with pool(works.make, renew, most=4, creators=1) as place, place.leased("a"):
            raise KeyError

    async def break_down(_: Thing) -> bool:
        raise ZeroDivisionError

    async with pool(works.make, break_down, most=4, creators=1) as place:
        await used(place, "a")
        await settled(place)
        with pytest.raises(ZeroDivisionError):
            await used(place, "a")
    assert works.alive == set()


async def test_whenever_it_is_cancelled_nothing_is_left() -> None:
    for after_ms in (0, 1, 3, 8, 15):
        works = Works()

        async def busy(works: Works = works) -> None:
            async with pool(works.make, renew, most=4, creators=2) as place:
                while True:
                    await together(place, "a", 3)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_ms / 1000):
                await busy()
        assert works.alive == set()
