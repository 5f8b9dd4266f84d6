"""Which hosts hold the sandboxes of many rollouts: utilisation and waiting, in a simulation with failures.

    python benchmarks/placement.py
    python benchmarks/placement.py --hosts 100 --rollouts 10000 --seed 1

Simulated are time, hosts, rollouts and failures; the placer is the one that runs use. All rollouts ask at once. Each
takes a lognormal time (median 60 s, at most 30 minutes) and wants one of 40 images, a few of them often; a sandbox
takes a second to make, unless its host has had one of that image. Hosts have 8, 16 or 32 places. A host dies once in
two hours, by chance, with all that runs there, which is made again elsewhere; it is back 10 minutes later. 1 % of
sandboxes fail by themselves, at any moment, and are made again.

The baseline, `dealt`, deals rollouts out in turn, as many to a host as its places are of all; each host has a line of
its own, which stays where it is when the host dies.

`s`: until all are done. `used`: of the places on hosts alive, while any rollout waited. `wait`: seconds from asking to
beginning. `warm`: sandboxes that a host had ready. `lost`: attempts that ended with a host or a sandbox. `overtaken`:
attempts that began after one that had asked later. `unserved`: rollouts that were never done.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager
from statistics import quantiles
from typing import Any, Protocol, get_args

from clawexp.runtime.placement import Placer, Placing

MEDIAN_S, SIGMA, LONGEST_S = 60.0, 0.9, 1800.0
MAKE_S, IMAGES, PLACES = 1.0, 40, (8, 16, 32)
DEATH_S, BACK_S, FAILING = 7200.0, 600.0, 0.01


class Instant(selectors.DefaultSelector):
    """Waits no time: what would be waited is added to the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += max(timeout or 0.0, 0.0)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Its clock is that of the simulation."""

    def __init__(self) -> None:
        self._instant = Instant()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now


class Dispatch(Protocol):
    """Who decides where a sandbox is."""

    def place(self, kind: int) -> AbstractAsyncContextManager[str]: ...
    def drain(self, name: str, reason: str) -> None: ...
    def restore(self, name: str) -> None: ...


class Dealt:
    """The baseline."""

    def __init__(self, places: dict[str, int]) -> None:
        self._turns = itertools.cycle(
            name for turn in range(max(places.values())) for name in places if turn < places[name]
        )
        self._free = {name: asyncio.Semaphore(number) for name, number in places.items()}
        self._alive = {name: asyncio.Event() for name in places}
        for event in self._alive.values():
            event.set()

    @contextlib.asynccontextmanager
    async def place(self, kind: int) -> AsyncIterator[str]:
        name = next(self._turns)
        async with self._free[name]:
            await self._alive[name].wait()
            yield name

    def drain(self, name: str, reason: str) -> None:
        self._alive[name].clear()

    def restore(self, name: str) -> None:
        self._alive[name].set()


class World:
    """Hosts that die, and what happens on them."""

    def __init__(self, dispatch: Dispatch, places: dict[str, int], seed: int) -> None:
        self.dispatch, self.places, self.chance = dispatch, places, random.Random(seed)
        self.dead = {name: asyncio.Event() for name in places}
        self.ready: dict[str, Counter[int]] = {name: Counter() for name in places}
        self.waits: list[float] = []
        self.counts: Counter[str] = Counter()
        self.waiting = self.running = 0
        self._asked = itertools.count()
        self._latest = -1
        self._seen, self._used, self._there = 0.0, 0.0, 0.0

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def moved(self, *, waiting: int = 0, running: int = 0) -> None:
        """Add up places and their use while somebody waits."""
        if self.waiting:
            alive = sum(number for name, number in self.places.items() if not self.dead[name].is_set())
            self._used += self.running * (self.now - self._seen)
            self._there += alive * (self.now - self._seen)
        self._seen = self.now
        self.waiting += waiting
        self.running += running

    async def live(self, name: str) -> None:
        """A host's life: dead again and again."""
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / DEATH_S))
            self.moved()
            self.dead[name].set()
            self.ready[name].clear()
            self.dispatch.drain(name, "dead")
            await asyncio.sleep(BACK_S)
            self.moved()
            self.dead[name] = asyncio.Event()
            self.dispatch.restore(name)

    async def rollout(self, image: int, seconds: float) -> None:
        """One rollout, made until it is done."""
        while not await self._attempt(image, seconds):
            self.counts["lost"] += 1
        self.counts["done"] += 1

    async def _attempt(self, image: int, seconds: float) -> bool:
        ticket, asked = next(self._asked), self.now
        self.moved(waiting=1)
        async with self.dispatch.place(image) as name:
            self.moved(waiting=-1, running=1)
            self.counts["overtaken"] += ticket < self._latest
            self._latest = max(ticket, self._latest)
            self.waits.append(self.now - asked)
            is_warm = self.ready[name][image] > 0
            self.counts["warm"] += is_warm
            self.ready[name][image] -= is_warm
            fails = self.chance.random() < FAILING
            lasts = (0.0 if is_warm else MAKE_S) + seconds * (self.chance.random() if fails else 1.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.dead[name].wait(), lasts)
                fails = True
            self.ready[name][image] += not self.dead[name].is_set()
            self.moved(running=-1)
            return not fails

    def row(self, rollouts: int) -> str:
        cuts = quantiles(self.waits, n=100)
        wait = f"{cuts[49]:8.0f} {cuts[98]:8.0f} {max(self.waits):8.0f}"
        warm = self.counts["warm"] / len(self.waits)
        counts = f"{self.counts['lost']:5d} {self.counts['overtaken']:10d} {rollouts - self.counts['done']:9d}"
        return f"{self.now:7.0f} {self._used / self._there:6.1%} {wait} {warm:6.1%} {counts}"


async def simulated(dispatch: Dispatch, places: dict[str, int], options: argparse.Namespace) -> str:
    """All rollouts, on hosts that die."""
    world, chance = World(dispatch, places, options.seed), random.Random(options.seed)
    often = [1 / (1 + number) for number in range(IMAGES)]
    async with asyncio.TaskGroup() as hosts:
        lives = [hosts.create_task(world.live(name)) for name in places]
        async with asyncio.TaskGroup() as group:
            for image in chance.choices(range(IMAGES), often, k=options.rollouts):
                group.create_task(world.rollout(image, min(chance.lognormvariate(0, SIGMA) * MEDIAN_S, LONGEST_S)))
        row = world.row(options.rollouts)
        for life in lives:
            life.cancel()
    return row


def run(coroutine: Coroutine[Any, Any, str]) -> str:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(coroutine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    places = {f"host{number}": chance.choice(PLACES) for number in range(options.hosts)}
    print(
        f"{options.rollouts} rollouts on {options.hosts} hosts with {sum(places.values())} places, seed {options.seed}"
    )
    print("placing       s   used wait P50      P99      max   warm  lost  overtaken  unserved")
    for placing in get_args(Placing):
        print(f"{placing:6} {run(simulated(Placer(places, placing), places, options))}", flush=True)

    async def dealt() -> str:
        return await simulated(Dealt(places), places, options)

    print(f"dealt  {run(dealt())}")


if __name__ == "__main__":
    main()
