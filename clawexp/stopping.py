"""Work that ends when it is told to."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, or to SIGINT or SIGTERM: then everything alive is closed, and KeyboardInterrupt raised."""

    async def stoppable() -> T:
        task = asyncio.current_task()
        assert task is not None
        # asyncio cancels the task at the first SIGINT; SIGTERM is treated alike.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
