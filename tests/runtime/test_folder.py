import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.records import Owner
from clawexp.runtime.folder import Folder, create

Owners = Callable[..., Owner]


@pytest.fixture
def folder(owner: Owners) -> Folder:
    return create(owner(), 1000)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.mkdir()
    (path / "key.txt").write_text("secret")
    return path


def test_what_is_put_can_be_got(folder: Folder):
    folder.put("a/b/c.txt", b"1")
    folder.put("~/.config/x.json", b"2")
    assert (folder.get("a/b/c.txt"), folder.get("~/.config/x.json")) == (b"1", b"2")
    assert (folder.home / ".config/x.json").read_bytes() == b"2"
    assert folder.files() == {"a/b/c.txt": 1}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "~/../x", "", "~/"])
def test_a_path_that_leaves_the_sandbox_is_refused(folder: Folder, path: str):
    with pytest.raises(RuntimeFault, match="no path in a sandbox"):
        folder.get(path)
    with pytest.raises(RuntimeFault, match="no path in a sandbox"):
        folder.put(path, b"")


def test_a_planted_link_is_never_read(folder: Folder, secret: Path):
    (folder.workspace / "file").symlink_to(secret / "key.txt")
    (folder.workspace / "folder").symlink_to(secret)
    for path in ("file", "folder/key.txt"):
        with pytest.raises(FileNotFoundError):
            folder.get(path)
    assert folder.files() == {}


def test_a_planted_link_is_never_written_through(folder: Folder, secret: Path):
    (folder.workspace / "file").symlink_to(secret / "key.txt")
    (folder.workspace / "folder").symlink_to(secret)
    folder.put("file", b"new")
    folder.put("folder/key.txt", b"new")
    assert (secret / "key.txt").read_text() == "secret"
    assert folder.files() == {"file": 3, "folder/key.txt": 3}


def test_a_planted_pipe_or_device_is_no_file(folder: Folder):
    os.mkfifo(folder.workspace / "pipe")
    with pytest.raises(FileNotFoundError, match="not a regular file"):
        folder.get("pipe")
    assert folder.files() == {}


def test_a_file_over_the_limit_is_not_read(folder: Folder):
    folder.put("big", b"x" * 1001)
    with pytest.raises(FileNotFoundError, match="larger than 1000 bytes"):
        folder.get("big")
    assert folder.files() == {"big": 1001}


def test_a_file_can_be_put_where_the_harness_left_something_else(folder: Folder):
    folder.put("a", b"file")
    folder.put("locked/x", b"1")
    (folder.workspace / "locked").chmod(0)
    folder.put("a/b", b"2")
    folder.put("locked/x", b"3")
    assert (folder.get("a/b"), folder.get("locked/x")) == (b"2", b"3")


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", ""])
def test_a_rollout_id_must_name_a_folder(owner: Owners, name: str):
    with pytest.raises(RuntimeFault, match="cannot name a folder"):
        create(owner(name), 1)
