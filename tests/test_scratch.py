import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.scratch import alive, remove, scratch_folder, scratch_root


def test_removal_never_follows_a_link(tmp_path: Path):
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/f").write_text("1")
    (tmp_path / "box").mkdir()
    (tmp_path / "box/link").symlink_to(tmp_path / "keep")
    remove(tmp_path / "box")
    remove(tmp_path / "box")  # one that is gone is no error
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]
    assert (tmp_path / "keep/f").exists()


def test_a_scratch_folder_is_marked_while_it_is_used_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder("run-") as folder:
        assert folder.parent == scratch_root()
        assert alive(folder)
        assert (folder / "owner").exists()
    assert list(scratch_root().iterdir()) == []


@pytest.mark.parametrize("make", [Path.touch, lambda root: root.symlink_to("/tmp")])
def test_a_scratch_root_that_somebody_else_may_have_laid_is_not_used(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make(scratch_root())
    with pytest.raises(RuntimeFault, match="is no folder of yours"), scratch_folder("run-"):
        pass
