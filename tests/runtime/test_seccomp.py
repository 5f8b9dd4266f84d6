import errno
import json
import struct

import pytest

from clawexp.runtime.seccomp import (
    ABSENT,
    ALLOW,
    ANY_BIT,
    AT_LEAST,
    EQUAL,
    LOAD,
    MACHINES,
    MISSING,
    PROFILES,
    REFUSED,
    RETURN,
    profile,
    program,
)


def decided(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel makes of a system call: 0 where it is allowed, otherwise the error."""
    code = program(machine)
    assert code is not None
    steps = list(struct.iter_unpack("=HBBI", code))
    data = struct.pack(
        "=iIQ6Q", number, architecture or MACHINES[machine][1], 0, *arguments, *[0] * (6 - len(arguments))
    )
    place, loaded = 0, 0
    while True:
        operation, yes, no, value = steps[place]
        place += 1
        if operation == LOAD:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == RETURN:
            return 0 if value == ALLOW else value & 0xFFFF
        else:
            met = {EQUAL: loaded == value, AT_LEAST: loaded >= value, ANY_BIT: bool(loaded & value)}[operation]
            place += yes if met else no


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_lists_is_refused_and_others_are_not(machine: str) -> None:
    column = MACHINES[machine][0]
    there = [numbers[column] for numbers in REFUSED.values() if numbers[column] != ABSENT]
    assert {decided(machine, number) for number in there} == {errno.EPERM}
    assert {decided(machine, numbers[column]) for numbers in MISSING.values()} == {errno.ENOSYS}
    assert decided(machine, {"x86_64": 0, "aarch64": 63}[machine]) == 0, "read"


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_and_sockets_are_made_and_namespaces_are_not(machine: str) -> None:
    clone, unshare, socket, ioctl = {"x86_64": (56, 272, 41, 16), "aarch64": (220, 97, 198, 29)}[machine]
    threads, new_user, new_time = 0x3D0F00, 0x10000000, 0x80
    assert decided(machine, clone, threads) == 0
    assert decided(machine, clone, threads | new_user) == errno.EPERM
    assert decided(machine, unshare, 0x400) == 0
    assert decided(machine, unshare, new_time) == errno.EPERM
    assert [decided(machine, socket, family) for family in (1, 2, 10, 16)] == [0, 0, 0, 0]
    assert [decided(machine, socket, family) for family in (17, 38, 40)] == [errno.EAFNOSUPPORT] * 3
    assert decided(machine, ioctl, 0, 0x5401) == 0
    # The kernel looks at the lower half alone.
    assert decided(machine, ioctl, 0, 0x1_0000_5412) == errno.EPERM


def test_calls_of_another_kind_of_machine_do_not_get_by() -> None:
    assert decided("x86_64", 0x40000000 + 1) == errno.ENOSYS
    assert decided("x86_64", 1, architecture=0x40000003) == errno.ENOSYS
    assert program("riscv64") is None


def test_podmans_profile_loses_what_is_refused_and_keeps_the_rest() -> None:
    own = json.loads(next(path for path in PROFILES if path.exists()).read_text())
    made = profile(own)
    allowed = {name for rule in made["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert not allowed & {*REFUSED, *MISSING}
    assert {"read", "openat", "execve", "socket", "ioctl"} <= allowed
    (clone,) = [rule for rule in made["syscalls"] if "clone" in rule["names"]]
    assert clone["args"][0]["op"] == "SCMP_CMP_MASKED_EQ"
    assert own["defaultAction"] == made["defaultAction"] == "SCMP_ACT_ERRNO"
