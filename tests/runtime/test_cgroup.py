import os
import subprocess
from pathlib import Path

import pytest

from clawexp.runtime.cgroup import Group, Limits, divided, own_groups, release_recorded, unlimited

LIMITS = Limits(memory_mb=64, cpus=0.5, pids=20)


def laid(folder: Path, cgroup: str, mountinfo: str) -> str:
    """A process's folder of /proc, as far as it is read."""
    folder.mkdir()
    (folder / "cgroup").write_text(cgroup)
    (folder / "mountinfo").write_text(mountinfo)
    return str(folder)


def test_own_groups_are_found_below_their_mounts(tmp_path: Path) -> None:
    for name in ("memory/a/b", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    process = laid(
        tmp_path / "proc",
        "5:memory:/a/b\n3:cpu,cpuacct:/\n1:pids:/gone\n0::/user.slice\n",
        f"30 25 0:26 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
        f"31 25 0:27 / {tmp_path}/cpu rw shared:2 - cgroup cgroup rw,cpu,cpuacct\n"
        f"32 25 0:28 / {tmp_path}/pids rw - cgroup cgroup rw,pids\n"
        f"33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    assert own_groups(process) == {"memory": tmp_path / "memory/a/b", "cpu": tmp_path / "cpu"}


def test_a_group_within_a_container_is_the_mount_itself(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    process = laid(
        tmp_path / "proc",
        "5:memory:/docker/abc\n",
        f"30 25 0:26 /docker/abc {tmp_path}/memory rw - cgroup cgroup rw,memory\n",
    )
    assert own_groups(process) == {"memory": tmp_path / "memory"}


def test_version_2_offers_none(tmp_path: Path) -> None:
    process = laid(tmp_path / "proc", "0::/x\n", f"30 25 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    assert own_groups(process) == {}
    assert "no limit on cpu, memory, pids can be set here" in (unlimited(process) or "")


def test_without_groups_nothing_is_in_force() -> None:
    group = Group([], "x", LIMITS)
    group.admit(os.getpid())
    assert group.in_force == {}
    assert group.missing == ["memory_mb", "cpus", "pids"]
    assert group.told(group.shortages()) == b""
    group.remove()


def test_limits_bind_a_process_and_what_it_starts_and_are_gone_afterwards(tmp_path: Path) -> None:
    record = tmp_path / "groups"
    with divided(f"clawexp-test-{os.getpid()}", record) as parents:
        assert {parent.parent for parent in parents} == set(own_groups().values())
        group = Group(parents, "one", LIMITS)
        expected = {"memory": ("memory_mb", 64), "cpu": ("cpus", 0.5), "pids": ("pids", 20)}
        assert group.in_force == dict(expected[controller] for controller in own_groups())
        with subprocess.Popen(["sh", "-c", "read go; cat /proc/self/cgroup"], stdin=-1, stdout=-1) as child:
            group.admit(child.pid)
            said, _ = child.communicate(b"go\n")
        for controller in own_groups():
            assert any(f"{controller}" in line and line.endswith("/one") for line in said.decode().splitlines())
        group.remove()
        left = parents
    assert not any(parent.exists() for parent in left)


@pytest.mark.parametrize("content", ["", "/no/such/group\n"])
def test_a_record_of_groups_that_are_gone_is_no_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "groups").write_text(content)
    release_recorded(tmp_path / "groups")
    release_recorded(tmp_path / "none")


def test_what_a_killed_driver_recorded_is_removed(tmp_path: Path) -> None:
    record = tmp_path / "groups"
    with divided(f"clawexp-test-{os.getpid()}", record) as parents:
        for parent in parents:
            (parent / "inner").mkdir()
        release_recorded(record)
        assert not any(parent.exists() for parent in parents)
