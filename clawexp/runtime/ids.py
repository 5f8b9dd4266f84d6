"""Which ids of the host stand behind the ids inside a container: root and the agent inside are nobody outside.

inside 0..65535  ->  for root as driver: BASE + the same; for a user: the range of /etc/subuid, 1000 being the user
"""

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from clawexp.errors import RuntimeFault

AGENT = 1000
"""The user that programs in a container run as."""
COUNT = 65536
TABLES = Path("/etc")
BASE = 1 << 30
"""First id for a driver that is root: in the range that systemd leaves to containers, above those of /etc/subuid."""


@dataclass(frozen=True, kw_only=True)
class Ids:
    """Maps for users and groups, as lines of (inside, outside, count), and what they make of two ids."""

    maps: dict[str, list[tuple[int, int, int]]]
    root: int
    """The host's id of root inside."""
    agent: int
    """The host's id of the agent inside."""


def unmapped() -> str | None:
    """Why ids cannot be mapped here; None where they can."""
    if os.geteuid() == 0:
        return None
    for program in ("newuidmap", "newgidmap"):
        if shutil.which(program) is None:
            return f"there is no {program} in PATH; install the package uidmap"
    for kind in ("uid", "gid"):
        if _delegated(kind) is None:
            name = _user()
            return f"/etc/sub{kind} gives {name} no {COUNT} ids; as root: usermod --add-sub{kind}s 100000-165535 {name}"
    return None


def ids() -> Ids:
    """The maps of this process's user. Raises RuntimeFault where there are none."""
    reason = unmapped()
    if reason:
        raise RuntimeFault(reason)
    if os.geteuid() == 0:
        line = (0, BASE, COUNT)
        return Ids(maps={"uid": [line], "gid": [line]}, root=BASE, agent=BASE + AGENT)
    users, groups = _delegated("uid"), _delegated("gid")
    assert users is not None
    assert groups is not None
    maps = {"uid": _around(users, os.geteuid()), "gid": _around(groups, os.getegid())}
    return Ids(maps=maps, root=users, agent=os.geteuid())


def _around(first: int, own: int) -> list[tuple[int, int, int]]:
    """The agent is the user, so that both may write the sandbox's files; all others come from the range."""
    return [(0, first, AGENT), (AGENT, own, 1), (AGENT + 1, first + AGENT, COUNT - AGENT - 1)]


def _delegated(kind: str) -> int | None:
    """First id of a range of this user that is large enough."""
    try:
        lines = (TABLES / f"sub{kind}").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in (_user(), str(os.geteuid())) and count.isdigit() and int(count) >= COUNT - 1:
            return int(first)
    return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
