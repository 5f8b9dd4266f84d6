"""Bubblewrap where it works, a plain subprocess where it does not."""

import contextlib
import functools
import logging
from collections.abc import AsyncIterator

from clawexp.component import component
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
    allow_unsafe: bool
    """Let harnesses that are not the project's own run where there is no isolation."""

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        reason = unavailable()
        if reason:
            warn(reason)
            runtime = Local(file_bytes=self.file_bytes, allow_unsafe=self.allow_unsafe)
        else:
            runtime = Bubblewrap(file_bytes=self.file_bytes)
        async with runtime.sandbox(task, needs, owner) as sandbox:
            yield sandbox
