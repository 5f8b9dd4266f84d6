import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from clawexp.records import Image, Task
from clawexp.runtime import image
from clawexp.runtime.ids import ids
from clawexp.runtime.task_image import TaskImage, base_image, built, context_digest, keep, wanted


def context(folder: Path, text: str = "FROM debian\nRUN true\n") -> Path:
    folder.mkdir()
    (folder / "Dockerfile").write_text(text)
    return folder


def at(task: Task, name: str, folder: Path, **changes) -> Task:
    return replace(task, id=name, image=Image(context=folder, required=True), **changes)


def made(store: Path, **changes) -> TaskImage:
    plain = TaskImage(
        store=store, name="n", base="b", below=(), workspace="/app", python="/usr/bin/python3", env={"A": "1"}
    )
    return replace(plain, **changes)


def test_tasks_with_the_same_content_and_workspace_share_an_image(tmp_path: Path, task: Task) -> None:
    one, two, other = (context(tmp_path / name) for name in ("one", "two", "other"))
    (other / "data").write_text("1")
    plain = replace(task, id="plain", image=Image(context=one, required=False))
    found = wanted(
        [at(task, "a", one), at(task, "b", two), at(task, "c", other), plain, at(task, "d", one, workspace="/w")]
    )
    assert [need.tasks for need in found] == [("a", "b"), ("c",), ("d",)]
    assert [need.named() for need in found] == ["tasks a and 1 more", "task c", "task d"]
    assert found[0].contexts == (one, two)


def test_whatever_changes_an_image_changes_its_digest(tmp_path: Path) -> None:
    folder = context(tmp_path / "c")
    (folder / "data").write_text("1")
    seen = {context_digest(folder, ""), context_digest(folder, "/w")}
    for change in (
        lambda: (folder / "data").write_text("2"),
        lambda: (folder / "data").chmod(0o755),
        lambda: (folder / "data").rename(folder / "moved"),
        lambda: (folder / "link").symlink_to("moved"),
        lambda: ((folder / "link").unlink(), (folder / "link").symlink_to("/moved")),
    ):
        change()
        seen.add(context_digest(folder, ""))
    assert len(seen) == 7
    assert context_digest(folder, "") == context_digest(folder, "")


def test_another_base_is_another_image(tmp_path: Path, task: Task) -> None:
    (need,) = wanted([at(task, "a", context(tmp_path / "c"))])
    assert len({need.store(base) for base in (None, image.NAME, "docker.io/library/debian")}) == 3


def test_what_was_kept_is_found_while_all_that_it_stands_on_is_there(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (need,) = wanted([at(task, "a", context(tmp_path / "c"))])
    assert built(need, None) is None
    below = image.cache() / "from-1"
    below.mkdir(parents=True)
    (tmp_path / "result/storage").mkdir(parents=True)
    finished = made(need.store(None), below=["from-1"])
    keep(finished, tmp_path / "result")
    assert built(need, None) == finished
    assert built(need, "package:base") is None
    assert finished.stores == [need.store(None) / "storage", below]
    below.rmdir()
    assert built(need, None) is None


def test_the_workspace_of_an_image_becomes_the_agents(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "workspace.tar", "w") as tar:
        for name, kind, mode in (
            (".", tarfile.DIRTYPE, 0o755),
            ("in", tarfile.DIRTYPE, 0o700),
            ("in/run", tarfile.REGTYPE, 0o4755),
            ("pipe", tarfile.FIFOTYPE, 0o644),
            ("link", tarfile.SYMTYPE, 0o777),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.linkname = (
                kind,
                mode,
                77,
                "/etc/passwd" if name == "link" else "",
            )
            tar.addfile(member, io.BytesIO())
    (tmp_path / "w").mkdir()
    made(tmp_path).unpack(tmp_path / "w")
    assert sorted(path.name for path in (tmp_path / "w").rglob("*")) == ["in", "link", "run"]
    assert os.readlink(tmp_path / "w/link") == "/etc/passwd"  # noqa: PTH115 - as it stands there
    status = (tmp_path / "w/in/run").stat()
    assert (status.st_uid, status.st_mode & 0o7777) == (ids().agent, 0o755)


def test_a_command_gets_the_images_environment_below_its_own_and_the_images_programs_first(tmp_path: Path) -> None:
    own = made(tmp_path, env={"A": "1", "B": "2", "PATH": "/opt/bin:/usr/bin"})
    env = own.programs_env({"B": "3", "PATH": "/usr/local/bin:/usr/bin"})
    assert env == {"A": "1", "B": "3", "PATH": "/opt/bin:/usr/bin:/usr/local/bin"}
    assert base_image("/work").programs_env({"X": "1"}) == {"X": "1"}
