"""Makes what was written durable, for all journals of a process at once.

While the disk is at work on some, others come; they go together next. A busy process so hands over once for many
calls, and a journalling file system writes most of them with the first.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial


class Syncer:
    """Belongs to the loop in which it is first used."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "sync")
        """Its own, so that no call waits for what others read or encode."""

    async def sync(self, file: int) -> None:
        """Return when all that was written to the open `file` survives the machine's end. Raises OSError."""
        synced = asyncio.get_running_loop().create_future()
        self._waiting.append((file, synced))
        if not self._busy:
            self._begin()
        await synced

    def _begin(self) -> None:
        batch, self._waiting = self._waiting, []
        self._busy = True
        files = [file for file, _ in batch]
        done = asyncio.get_running_loop().run_in_executor(self._thread, _sync, files)
        done.add_done_callback(partial(self._ended, [synced for _, synced in batch]))

    def _ended(self, batch: Sequence[asyncio.Future[None]], done: asyncio.Future[list[OSError | None]]) -> None:
        for synced, error in zip(batch, done.result(), strict=True):
            if synced.done():  # its waiter was cancelled
                continue
            if error is None:
                synced.set_result(None)
            else:
                synced.set_exception(error)
        self._busy = False
        if self._waiting:
            self._begin()


def _sync(files: Sequence[int]) -> list[OSError | None]:
    """One error for each file."""
    errors: list[OSError | None] = []
    for file in files:
        try:
            os.fdatasync(file)  # content and size; when it was written matters to nobody
            errors.append(None)
        except OSError as error:
            errors.append(error)
    return errors
