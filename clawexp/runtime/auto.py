"""Bubblewrap where it works, a plain subprocess where it does not."""

import contextlib
import functools
import logging
from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import Field

from clawexp.component import component
from clawexp.protocols import Placed
from clawexp.records import Needs, Owner, Sandbox, Task
from clawexp.runtime.bubblewrap import Bubblewrap, unavailable
from clawexp.runtime.local import Local
from clawexp.spec import Positive

log = logging.getLogger(__name__)


@functools.cache
def warn(reason: str) -> None:
    """Say once for each process that there is no isolation, and why."""
    log.warning("no isolation: bubblewrap does not work here (%s); plain subprocesses are used", reason)


@component
class Auto:
    """Chosen by a probe that is run once for each process."""

    file_bytes: Positive
    """Larger files are not read back."""
    memory_mb: Positive
    """This and what follows as in bubblewrap; a plain subprocess has no limits."""
    cpus: Annotated[float, Field(gt=0)]
    pids: Positive
    disk_mb: Positive
    require_limits: bool
    allow_unsafe: bool
    """Let harnesses that are not the project's own run where there is no isolation."""

    def refuses(self, place: Placed) -> str | None:
        """As the runtime does that is chosen."""
        return self._chosen().refuses(place)

    def distrusts(self, needs: Needs) -> str | None:
        """As the runtime does that is chosen."""
        chosen = self._chosen()
        return chosen.distrusts(needs) if isinstance(chosen, Local) else None

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        reason = unavailable()
        if reason:
            warn(reason)
        async with self._chosen().sandbox(task, needs, owner) as sandbox:
            yield sandbox

    def _chosen(self) -> Bubblewrap | Local:
        if unavailable():
            return Local(file_bytes=self.file_bytes, allow_unsafe=self.allow_unsafe)
        return Bubblewrap(
            file_bytes=self.file_bytes,
            memory_mb=self.memory_mb,
            cpus=self.cpus,
            pids=self.pids,
            disk_mb=self.disk_mb,
            require_limits=self.require_limits,
        )
