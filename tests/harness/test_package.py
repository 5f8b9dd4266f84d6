from pathlib import Path

import pytest

from clawexp.errors import HarnessError
from clawexp.harness.package import appearing, call


def test_a_failed_program_is_told_with_its_last_words():
    with pytest.raises(HarnessError, match=r"(?s)ended with 3\. It said:\nno such thing"):
        call(["sh", "-c", "echo no such thing >&2; exit 3"], {"PATH": "/usr/bin:/bin"})


def test_a_package_appears_whole_or_not_at_all(tmp_path: Path):
    root = tmp_path / "cache/demo-1"
    with pytest.raises(FileNotFoundError), appearing(root) as made:
        (made / "half/no such folder").touch()
    assert list(root.parent.iterdir()) == []
    with appearing(root) as made:
        (made / "all").touch()
        assert not root.exists()
    assert [path.relative_to(root.parent) for path in root.parent.rglob("*")] == [Path("demo-1"), Path("demo-1/all")]


def test_whoever_installed_the_same_faster_is_left_alone(tmp_path: Path):
    with appearing(tmp_path / "demo-1") as made:
        (made / "mine").touch()
        (tmp_path / "demo-1").mkdir()
        (tmp_path / "demo-1/theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["demo-1", "theirs"]
