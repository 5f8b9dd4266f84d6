from pathlib import Path

import pytest

from clawexp.commands.doctor import run
from clawexp.runtime import podman_probe
from clawexp.runtime.cgroup import own_groups
from clawexp.runtime.oci import KINDS
from clawexp.runtime.podman_probe import points


def test_every_point_says_what_there_is_or_what_to_do() -> None:
    found = {point.name: point for point in points("crun")}
    expected = {"rootless", "cgroups", "limits", "ids", "storage", "seccomp", "/dev/net/tun", "locks", "open files"}
    assert expected | {"processes", "file watchers", *(kind.program for kind in KINDS.values())} == set(found)
    assert all(point.note for point in found.values())
    assert found["rootless"].good
    assert "podman version" in found["rootless"].note
    assert found["limits"].good is (len(own_groups()) == 3)
    assert found["crun"].note.endswith("the one that is used")
    assert found["runsc"].note.endswith("not used; runtime.oci_runtime=runsc")


def test_what_is_not_there_comes_with_what_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(podman_probe.shutil, "which", lambda _: None)
    monkeypatch.setattr(podman_probe, "PROFILES", (tmp_path / "none",))
    found = {point.name: point for point in points("crun")}
    assert not found["runc"].good
    assert found["runc"].note == "not in PATH: apt-get install runc"
    assert not found["seccomp"].good


def test_doctor_says_which_one_makes_the_containers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runtime=podman", "runtime.oci_runtime=runsc"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (used,) = [line for line in lines if line.endswith("the one that is used")]
    assert used.startswith("ok   runsc")
    assert run(["runtime=podman", "runtime.oci_runtime=kata"]) == 1
    assert "use runsc" in capsys.readouterr().out


def test_doctor_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runtime=podman"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok   ", "no   ")) for line in lines)
    assert any("overlay" in line for line in lines)
