"""When the capture process looks for garbage that refers to itself.

A full collection stops the loop for tens of milliseconds, and everybody who waits then. A request leaves no such
garbage, a connection does; so there is nothing to look for until connections have closed, and it is done while
nobody waits where that can be.
"""

import gc

FEW, MANY = 50, 500
"""Closed connections after which it is worth a look, and after which it cannot be put off: some 100 kB each."""


class Garbage:
    """Takes the place of Python's own collections."""

    def __init__(self) -> None:
        """What is loaded by now is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._closed = 0

    def connection_closed(self, *, idle: bool) -> None:
        """Collect if it is time. `idle`: nobody waits for an answer."""
        self._closed += 1
        if self._closed >= (FEW if idle else MANY):
            gc.collect()
            self._closed = 0
