from pathlib import Path

import pytest

from clawexp.taskset.tree_files import Unlayable, read_tree, tree_files


def test_files_are_found_at_every_depth_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert list(tree_files(tmp_path)) == ["a/c/d.txt", "b.txt"]
    assert read_tree(tmp_path) == {"a/c/d.txt": b"a/c/d.txt", "b.txt": b"b.txt"}
    assert tree_files(tmp_path / "none") == {}


def test_a_link_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to("/etc/hostname")
    with pytest.raises(Unlayable, match="in/link is no regular file"):
        tree_files(tmp_path / "in")
