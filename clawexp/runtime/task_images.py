"""The images of a taskset's tasks: which are missing, and the building of those, a few at once."""

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed
from clawexp.runtime import image
from clawexp.runtime.containerfile import sources
from clawexp.runtime.image_build import Building, build_image
from clawexp.runtime.registry import registry, unreachable
from clawexp.runtime.task_image import TaskImage, Wanted, built, possible_bases, wanted


@dataclass(frozen=True, kw_only=True)
class TaskImages:
    """The images of these tasks, built or not."""

    how: Building
    places: tuple[Placed, ...]

    @functools.cached_property
    def needed(self) -> list[Wanted]:
        return wanted(self.places)

    def prepared(self) -> str | None:
        """None when all are there; otherwise the line that builds the others."""
        missing = self._missing()
        if not missing:
            return None
        return f"python -m clawexp prepare, with the same taskset and runtime: {len(missing)} images of tasks"

    def prepare(self) -> None:
        """Build those that are not there, with progress on stderr. Raises RuntimeFault."""
        if self._missing():
            image.build()
            asyncio.run(self.build())

    async def build(self) -> None:
        """The same, where the base image is there; whenever it is cancelled, nothing half made is left."""
        await build_images(self._missing(), self.how)

    def found(self) -> dict[Path, TaskImage]:
        """By context. Raises RuntimeFault where one is missing."""
        line = self.prepared()
        if line:
            raise RuntimeFault(f"not all images of tasks are there; build them with {line}")
        there = {need.digest: built(need, self.how.base) for need in self.needed}
        return {context: made for need in self.needed for context in need.contexts if (made := there[need.digest])}

    def _missing(self) -> list[Wanted]:
        return [need for need in self.needed if built(need, self.how.base) is None]


async def build_images(needed: Sequence[Wanted], how: Building) -> None:
    """Build each, a few at once, with progress on stderr. Raises RuntimeFault that tells what is wrong with each."""
    bases = await _bases(needed, how.base)
    turn, pulling = asyncio.Semaphore(how.at_once), asyncio.Lock()
    problems: list[str] = []

    async def build(number: int, need: Wanted) -> None:
        async with turn:
            begun, ended = time.monotonic(), "built"
            image.say(f"podman: building image {number} of {len(needed)}, of {need.named()}, {need.dockerfile}")
            try:
                await build_image(need, bases[need.digest], how, pulling)
            except RuntimeFault as fault:
                ended = "failed"
                problems.append(f"{need.named()}, {need.dockerfile}, {fault}")
        took = time.monotonic() - begun
        image.say(f"podman: image {number} of {len(needed)} {ended} after {took:.0f} s")

    async with asyncio.TaskGroup() as group:
        for number, need in enumerate(needed, start=1):
            group.create_task(build(number, need))
    if problems:
        listed = "".join(f"\n    {problem}" for problem in problems)
        raise RuntimeFault(f"{len(problems)} of {len(needed)} images of tasks could not be built{listed}")


async def _bases(needed: Sequence[Wanted], key: str | None) -> dict[str, str | None]:
    """What FROM stands for in each, by its digest; None: for what it says."""
    if key is not None:
        return dict.fromkeys((need.digest for need in needed), possible_bases(key)[0])
    hosts = {need.digest: {registry(name) for name in sources(need.dockerfile.read_text())} for need in needed}
    silent = set()
    for host in sorted(set().union(*hosts.values())):
        if reason := await asyncio.to_thread(unreachable, host):
            silent.add(host)
            image.say(
                f"podman: {host} does not answer ({reason}); what tasks start from there is replaced by {image.NAME}. "
                "Name what they shall start from with runtime.base"
            )
    return {digest: image.NAME if named & silent else None for digest, named in hosts.items()}
