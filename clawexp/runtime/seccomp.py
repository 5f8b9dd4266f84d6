"""System calls that no program of a sandbox needs, refused by the kernel.

What is refused would take a capability anyway, or opens a part of the kernel that has let programs out before: new
user namespaces, mounts, keys, loading of code into the kernel, the clock, other processes' memory by fault handlers.
Bubblewrap gets a filter. Podman gets its own list of what is allowed, without these: it allows namespaces and mounts.
"""

import errno
import platform
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
NEWTIME = 0x80
FAMILIES = (1, 2, 10, 16)
"""Of sockets: unix, IPv4, IPv6, netlink."""
TERMINAL = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal."""
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables below, and the name that the kernel gives the machine."""
X32 = 0x40000000
ABSENT = 0xFFFFFFFF

REFUSED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "ioperm": (173, ABSENT),
    "iopl": (172, ABSENT),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
MISSING = {
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
}
"""Said not to exist, so that programs take the older way: flags of clone3 lie in memory, where no filter sees them."""
CLONE, UNSHARE, SOCKET, IOCTL = (56, 220), (272, 97), (41, 198), (16, 29)

PROFILES = (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json"))
"""Podman's own, the administrator's first."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24
"""Offsets in what the kernel shows a filter; of arguments the lower half."""
ALLOW = 0x7FFF0000


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no`: how many to skip."""
    return struct.pack("=HBBI", code, yes, no, value)


def _refuse(number: int) -> bytes:
    """Return this error."""
    return _step(RETURN, 0x00050000 | number)


def program(machine: str) -> bytes | None:
    """The filter for a kind of machine, as the kernel takes it; None for a kind that is not known here."""
    if machine not in MACHINES:
        return None
    column, architecture = MACHINES[machine]
    steps = [
        _step(LOAD, ARCHITECTURE),
        _step(EQUAL, architecture, yes=1),
        _refuse(errno.ENOSYS),
        _step(LOAD, NUMBER),
        _step(AT_LEAST, X32, no=1),
        _refuse(errno.ENOSYS),
    ]
    for table, error in ((REFUSED, errno.EPERM), (MISSING, errno.ENOSYS)):
        for numbers in table.values():
            steps += [_step(EQUAL, numbers[column], no=1), _refuse(error)]
    for numbers, bits in ((CLONE, NAMESPACES), (UNSHARE, NAMESPACES | NEWTIME)):
        steps += _when(numbers[column], FIRST, [_step(ANY_BIT, bits, no=1), _refuse(errno.EPERM)])
    for request in TERMINAL:
        steps += _when(IOCTL[column], SECOND, [_step(EQUAL, request, no=1), _refuse(errno.EPERM)])
    known = [_step(EQUAL, family, yes=len(FAMILIES) - place) for place, family in enumerate(FAMILIES)]
    steps += _when(SOCKET[column], FIRST, [*known, _refuse(errno.EAFNOSUPPORT)])
    return b"".join([*steps, _step(RETURN, ALLOW)])


def _when(number: int, argument: int, check: list[bytes]) -> list[bytes]:
    """Look at an argument of one system call, then at the number again."""
    return [_step(EQUAL, number, no=len(check) + 2), _step(LOAD, argument), *check, _step(LOAD, NUMBER)]


def profile(allowed: Mapping[str, Any]) -> dict[str, Any]:
    """A profile of podman, `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [...]}`, without what is refused here."""
    taken = {*REFUSED, *MISSING, "clone", "unshare"}
    rules = [{**rule, "names": [name for name in rule["names"] if name not in taken]} for rule in allowed["syscalls"]]
    rules += [
        {"names": [*REFUSED], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM, "errno": "EPERM"},
        {"names": [*MISSING], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS, "errno": "ENOSYS"},
        _without("clone", NAMESPACES),
        _without("unshare", NAMESPACES | NEWTIME),
    ]
    return {**allowed, "syscalls": [rule for rule in rules if rule["names"]]}


def _without(name: str, bits: int) -> dict[str, Any]:
    """Allow a call whose first argument has none of the bits."""
    argument = {"index": 0, "value": bits, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}


FILTER = program(platform.machine())
