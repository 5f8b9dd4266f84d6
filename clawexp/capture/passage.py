"""Interception: who may pass through the proxy, and to where.

A harness that nobody told of a base URL calls its vendor's host through the proxy, and its rollout's key is the
proxy credential. Calls of the vendors' hosts are answered here; a host on the experiment's list is really asked;
every other one is refused and counted.
"""

import base64
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from clawexp.capture.dialects.table import DIALECTS
from clawexp.capture.open_rollout import OpenRollout
from clawexp.errors import CaptureError

MODEL_HOSTS = frozenset(urlsplit(dialect.vendor).hostname for dialect in DIALECTS)
WEB_PORTS = (80, 443)
MOST_BLOCKED = 200
"""Hosts that are named for one rollout: a harness can make up as many as it likes."""
OTHERS = "other hosts"
"""Stands for those beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A request, or a tunnel of many, that may go on."""

    key: str
    """Of the rollout that speaks."""
    to_model: bool
    """Answered here. Otherwise the host itself is asked."""


class Blocked(CaptureError):
    """A request that goes no further."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Passages:
    """Decides for all rollouts of one process."""

    def __init__(self, rollouts: Mapping[str, OpenRollout], allowed: Sequence[str], *, proxying: bool) -> None:
        """`rollouts` by key, as they come and go. `allowed`: `pypi.org`, `*.example.org`, `api.example.org:8443`.

        Where this process is not `proxying`, nothing passes.
        """
        self._rollouts = rollouts
        self._proxying = proxying
        self._allowed = tuple(pattern.lower() for pattern in allowed)

    def admit(self, credentials: str, host: str, port: int) -> Passage:
        """`credentials`: the value of Proxy-Authorization. Raises Blocked."""
        if not self._proxying:
            raise Blocked(403, "This is no proxy; choose way_in=interception for the harness, or capture.allow_hosts.")
        key = password(credentials)
        rollout = self._rollouts.get(key)
        if rollout is None:
            raise Blocked(407, "The proxy needs the credentials of a rollout.")
        host = host.lower().rstrip(".")
        if host in MODEL_HOSTS:
            return Passage(key=key, to_model=True)
        if self._allows(host, port):
            return Passage(key=key, to_model=False)
        _count(rollout, f"{host}:{port}")
        raise Blocked(403, f"{host}:{port} cannot be reached from here; capture.allow_hosts lists what can.")

    def _allows(self, host: str, port: int) -> bool:
        for pattern in self._allowed:
            name, _, wanted = pattern.partition(":")
            if fnmatch.fnmatchcase(host, name) and (port == int(wanted) if wanted else port in WEB_PORTS):
                return True
        return False


def password(credentials: str) -> str:
    """Of `Basic ...`, the value of Proxy-Authorization; empty where it is anything else."""
    scheme, _, encoded = credentials.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _count(rollout: OpenRollout, host: str) -> None:
    known = host in rollout.blocked or len(rollout.blocked) < MOST_BLOCKED
    rollout.blocked[host if known else OTHERS] += 1
