import os
from pathlib import Path

import pytest

from clawexp.runtime import ids as module
from clawexp.runtime.ids import AGENT, BASE, COUNT, ids, unmapped


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process taken for user 1234, with tables of its own for subordinate ids."""
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(os, "getegid", lambda: 5678)
    monkeypatch.setattr(module, "TABLES", tmp_path)
    return tmp_path


def test_root_takes_ids_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert unmapped() is None
    assert ids().maps == {"uid": [(0, BASE, COUNT)], "gid": [(0, BASE, COUNT)]}
    assert (ids().root, ids().agent) == (BASE, BASE + AGENT)


def test_a_user_is_the_agent_and_root_is_of_its_subordinate_ids(user: Path) -> None:
    (user / "subuid").write_text("other:1:65536\n1234:100000:65536\n")
    (user / "subgid").write_text("1234:200000:65536\n")
    assert unmapped() is None
    found = ids()
    assert found.maps["uid"] == [(0, 100_000, 1000), (1000, 1234, 1), (1001, 101_000, 64_535)]
    assert found.maps["gid"] == [(0, 200_000, 1000), (1000, 5678, 1), (1001, 201_000, 64_535)]
    assert (found.root, found.agent) == (100_000, 1234)
    inside = [number for first, _, count in found.maps["uid"] for number in range(first, first + count)]
    assert inside == list(range(COUNT))


@pytest.mark.parametrize("line", ["", "1234:100000:1000\n", "other:100000:65536\n"])
def test_a_user_without_enough_of_them_is_told_how_to_get_them(line: str, user: Path) -> None:
    (user / "subuid").write_text(line)
    assert "usermod --add-subuids" in (unmapped() or "")
