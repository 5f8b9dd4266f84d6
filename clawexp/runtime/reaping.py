"""The driver's side of its reaper: a process that is started once for a run, and again where it dies."""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from clawexp.runtime import reaper_program
from clawexp.scratch import start_time

log = logging.getLogger(__name__)

INTERPRETER = Path(sys.executable).resolve()
STARTS = 10
"""One that dies so often would die again."""


class Reaper:
    """A live one. Made by `reaping` alone."""

    def __init__(self) -> None:
        self._starts = 0
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> None:
        me = os.getpid()
        self._starts += 1
        self._process = subprocess.Popen(
            [str(INTERPRETER), "-I", "-S", reaper_program.__file__, str(me), start_time(me) or ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # whoever kills the driver's group does not mean this
        )
        self._ended = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._ended, self._again)

    def _again(self) -> None:
        """It has ended, and the driver has not."""
        self._forget()
        code = self._process.wait()
        if self._starts >= STARTS:
            log.warning("the reaper ended with %d for the %dth time; it is not started again", code, self._starts)
            self._ended = -1
            return
        log.warning("the reaper ended with %d; another is started", code)
        self._start()

    def _forget(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ended)
        os.close(self._ended)

    def close(self) -> None:
        """End it: the driver has removed everything itself."""
        if self._ended >= 0:
            self._forget()
            self._process.kill()
            self._process.wait()


@contextlib.asynccontextmanager
async def reaping() -> AsyncIterator[Reaper]:
    """While the context lasts, a process waits for this one's end, to remove what it leaves then."""
    reaper = Reaper()
    try:
        yield reaper
    finally:
        reaper.close()
