"""Clients that are connected while nothing is served to them: each has a time, and there is room for so many.

Anybody in a sandbox may connect, without a key, and a process has only so many descriptors: without bounds one rollout
could keep all others out.
"""

import asyncio
import resource

from mitmproxy import connection

from clawexp.capture.client import hang_up

SILENT_S = 60.0
"""From a connection to the first byte of a request."""
MOST = 4096


class Unserved:
    """Belongs to the loop in which it is used."""

    def __init__(self) -> None:
        self._clocks: dict[str, tuple[connection.Client, asyncio.TimerHandle]] = {}
        """By client, in the order in which they began to wait."""

    def expect(self, client: connection.Client, limit_s: float) -> None:
        """From now on the client has so long. Where it is one too many, who has waited longest is cut off."""
        self.forget(client)
        clock = asyncio.get_running_loop().call_later(limit_s, self._end, client)
        self._clocks[client.id] = client, clock
        if len(self._clocks) > _room():
            oldest, _ = next(iter(self._clocks.values()))
            self._end(oldest)

    def forget(self, client: connection.Client) -> None:
        """It is served, or gone."""
        found = self._clocks.pop(client.id, None)
        if found is not None:
            found[1].cancel()

    def _end(self, client: connection.Client) -> None:
        self.forget(client)
        hang_up(client)


def _room() -> int:
    """The other half of the descriptors is for those who are served, and for journals."""
    return min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def widen() -> None:
    """Take as many descriptors as this process may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
