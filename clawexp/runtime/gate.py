"""Holds a bubblewrap sandbox at its door until it can be watched, and sees that it is empty at the end.

bwrap names the sandbox's process 1 on one pipe and waits on another before it runs the command. Process 1 is
the root of the sandbox's process namespace: when it is gone, the kernel has ended everything in there.
"""

import asyncio
import contextlib
import json
import os
import signal
from typing import Any, Self

from clawexp.errors import RuntimeFault
from clawexp.runtime.process import DEATH_S, Running, readable


class Gate:
    """The two pipes of one bwrap process, and a handle on its process 1."""

    def __enter__(self) -> Self:
        self._status, self._status_inside = os.pipe()
        self._wait_inside, self._wait = os.pipe()
        os.set_blocking(self._status, False)
        self._text = b""
        self._told_all = False
        self._first: int | None = None
        self.inherited = (self._status_inside, self._wait_inside)
        self.arguments = ("--json-status-fd", str(self._status_inside), "--block-fd", str(self._wait_inside))
        return self

    def __exit__(self, *_: object) -> None:
        if self._first is not None:
            self._kill()
            os.close(self._first)
        for descriptor in (self._status, self._wait, *self.inherited):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    async def open(self, running: Running) -> None:
        """Wait until process 1 is known, take a handle on it, let the command begin."""
        for descriptor in self.inherited:  # so that the end of bwrap is the end of the pipe
            os.close(descriptor)
        self.inherited = ()
        first = await self._named()
        if first is not None:
            # It waits at the gate, or is a zombie of a bwrap that is not reaped: the id is still its own.
            with contextlib.suppress(ProcessLookupError):
                self._first = os.pidfd_open(first)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._wait, b"1")

    async def _named(self) -> int | None:
        """The host's id of process 1; None if bwrap ended without one. bwrap writes its line in several parts."""
        while True:
            await readable(self._status)
            first = self.read().get("child-pid")
            if first is not None or self._told_all:
                return first

    async def emptied(self) -> None:
        """Return when nothing in there runs any more. Raises RuntimeFault if that does not come about."""
        if self._first is None:
            return
        self._kill()
        try:
            async with asyncio.timeout(DEATH_S):
                await readable(self._first)
        except TimeoutError as error:
            raise RuntimeFault(f"a sandbox still runs {DEATH_S:.0f} s after SIGKILL") from error

    def read(self) -> dict[str, Any]:
        """All that bwrap has reported so far."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._status, 4096):
                self._text += chunk
            self._told_all = True
        report: dict[str, Any] = {}
        for line in self._text.splitlines(keepends=True):
            if line.endswith(b"\n"):
                report |= json.loads(line)
        return report

    def _kill(self) -> None:
        assert self._first is not None
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)
