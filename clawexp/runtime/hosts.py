"""Sandboxes on many hosts: a global placer over a runtime on each, with a pool of its own.

A host that dies, or fails to make one sandbox after another, is drained: nothing is placed there until it has been
started anew. What ran there fails as the runtime's fault, which is made again, elsewhere.
"""

import asyncio
import contextlib
import dataclasses
import logging
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from clawexp.component import component
from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed, Preparable, Runtime
from clawexp.records import Needs, Owner, Sandbox, Task
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.runtime.far_sandbox import place_fields
from clawexp.runtime.host import Host, Way, host
from clawexp.runtime.placement import Placer, Placing
from clawexp.runtime.podman import Podman
from clawexp.runtime.process import to_the_end
from clawexp.scratch import scratch_folder
from clawexp.spec import Positive, Seconds

log = logging.getLogger(__name__)

NAMED = re.compile(r"[^\s*-][^\s*]*(\*[1-9][0-9]*)?")
"""Never what ssh would take for an option."""
FAULTS = 3
"""Sandboxes that a host may fail to make, one after another: it would fail fast, and so draw all others to it."""
UNTRIED = "it has not been started yet"
PAUSE_S, LONGEST_S = 10.0, 600.0
"""Until a host is started anew: at first, and at most."""


def _named(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if not hosts:
        raise ValueError("give at least one: 'runtime.hosts=[node1,node2]'")
    if unclear := [each for each in hosts if not NAMED.fullmatch(each)]:
        raise ValueError(
            f"{', '.join(map(repr, unclear))}: a host is a name that ssh knows, or that and a number: node1*64"
        )
    names = [each.partition("*")[0] for each in hosts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} is named twice; give a host more sandboxes instead: {twice[0]}*64")
    return hosts


@component
class Hosts:
    """The same runtime on every host."""

    each: Bubblewrap | Podman
    """What makes the sandboxes on a host."""
    hosts: Annotated[tuple[str, ...], AfterValidator(_named)]
    """As ssh knows them. `node1*64`: with its own number of sandboxes. `local/NAME`: this machine, once more."""
    sandboxes: Positive
    """At once on each host that has no number of its own."""
    placing: Placing
    ssh: tuple[str, ...]
    """The program, and options of your own."""
    python: str | None
    """On the hosts, with clawexp installed; None: at the same path as here."""
    start_s: Seconds
    """For one host."""

    @property
    def sandboxes_by_host(self) -> dict[str, int]:
        """At once."""
        told = {name: number for name, _, number in (each.partition("*") for each in self.hosts)}
        return {name: int(number or self.sandboxes) for name, number in told.items()}

    def prepared(self) -> str | None:
        """Whether this machine has what its runtime needs; each host says so itself when it is started."""
        return self.each.prepared() if isinstance(self.each, Podman) else None

    def prepare(self) -> None:
        """Prepare this machine. Raises ClawexpError."""
        if isinstance(self.each, Podman):
            self.each.prepare()

    def images(self, places: Sequence[Placed]) -> Preparable:
        """Those that tasks bring, for this machine."""
        return self.each.images(places) if isinstance(self.each, Podman) else _Nothing()

    def refuses(self, place: Placed) -> str | None:
        """As the runtime on each host does."""
        return self.each.refuses(place)

    def lacks(self, needs: Needs, place: Placed | None) -> str | None:
        """As the runtime on each host does."""
        return self.each.lacks(needs, place) if isinstance(self.each, Podman) else None

    @contextlib.asynccontextmanager
    async def open(self, folders: Sequence[Path], places: Sequence[Placed]) -> AsyncIterator[Runtime]:
        """All hosts, started. Raises RuntimeFault where none of them comes to serve."""
        kind = type(self.each)
        settings = {
            "target": f"{kind.__module__}.{kind.__qualname__}",
            "fields": dataclasses.asdict(self.each),
            "places": [place_fields(place) for place in places],
            "folders": [str(folder) for folder in folders],
        }
        with scratch_folder("hosts-") as folder:
            way = Way(
                ssh=self.ssh,
                python=self.python or sys.executable,
                settings=settings,
                folder=folder,
                start_s=self.start_s,
            )
            opened = OpenHosts(Placer(self.sandboxes_by_host, self.placing), way)
            kept = {asyncio.ensure_future(opened.keep(name)) for name in self.sandboxes_by_host}
            try:
                await opened.started()
                yield opened
            finally:
                await to_the_end(_ended(kept))

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        """A sandbox with hosts for itself alone."""
        sockets = [owner.proxy_socket.parent] if owner.proxy_socket else []
        async with self.open(sockets, [task]) as opened, opened.sandbox(task, needs, owner) as sandbox:
            yield sandbox


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()  # raises: a host's keeper ends by cancellation alone


class _Nothing:
    """To prepare."""

    def prepared(self) -> str | None:
        return None

    def prepare(self) -> None:
        return None


class OpenHosts:
    """Live hosts, as far as they live."""

    def __init__(self, placer: Placer, way: Way) -> None:
        self._placer, self._way = placer, way
        self._live: dict[str, Host] = {}
        self._tried: set[str] = set()
        self._first = asyncio.Event()
        for name in placer.hosts:
            placer.drain(name, UNTRIED)

    async def started(self) -> None:
        """Return when all hosts have been tried. Raises RuntimeFault where none serves, and says why."""
        await self._first.wait()
        if not self._live:
            reasons = "; ".join(f"{each.name}: {each.drained}" for each in self._placer.hosts.values())
            raise RuntimeFault(f"none of the hosts serves sandboxes: {reasons}")

    async def keep(self, name: str) -> None:
        """Have a host serve, and again whenever it does not any more, until this is cancelled."""
        pause = PAUSE_S
        while True:
            try:
                async with host(self._way, name) as live:
                    pause = PAUSE_S
                    await self._serving(name, live)
            except RuntimeFault as fault:
                self._drain(name, str(fault))
            finally:
                self._live.pop(name, None)
            self._note(name)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_S)

    async def _serving(self, name: str, live: Host) -> None:
        """Until its program ends, or too much went wrong on it."""
        self._live[name] = live
        self._placer.restore(name)
        self._note(name)
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(live.process.wait())
            given_up = group.create_task(live.given_up.wait())
            await asyncio.wait({ended, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not given_up.done():
                self._drain(name, "its program ended")
            ended.cancel()
            given_up.cancel()

    def _drain(self, name: str, reason: str) -> None:
        if self._placer.hosts[name].drained in (None, UNTRIED):
            log.warning("host %s is drained: %s", name, reason)
        self._placer.drain(name, reason)

    def _note(self, name: str) -> None:
        self._tried.add(name)
        if self._tried == self._placer.hosts.keys():
            self._first.set()

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        image = task.image.context if task.image else None
        async with self._placer.place((image, task.workspace, *needs.mounts)) as name:
            live = self._live.get(name)
            if live is None:
                raise RuntimeFault(f"host {name} was gone when its turn had come")
            async with contextlib.AsyncExitStack() as stack:
                try:
                    sandbox = await stack.enter_async_context(live.sandbox(task, needs, owner))
                except RuntimeFault as fault:
                    self._count(live, fault)
                    raise
                live.faults = 0
                yield sandbox

    def _count(self, live: Host, fault: RuntimeFault) -> None:
        live.faults += 1
        if live.faults == FAULTS:
            self._drain(live.name, f"{FAULTS} sandboxes failed, one after another: {fault}")
            live.given_up.set()
