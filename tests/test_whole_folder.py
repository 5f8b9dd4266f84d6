from pathlib import Path

import pytest

from clawexp.whole_folder import check_seal, seal, whole_folder


def test_it_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    with whole_folder(place) as partial:
        (partial / "weights").write_text("1")
        assert not place.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert (place / "weights").read_text() == "1"


def test_what_is_not_finished_leaves_the_older_one_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    with whole_folder(place) as partial:
        (partial / "weights").write_text("1")
    with pytest.raises(FileNotFoundError), whole_folder(place) as partial:
        (partial / "no folder" / "weights").write_text("2")
    assert (place / "weights").read_text() == "1"
    with whole_folder(place) as partial:
        (partial / "others").write_text("3")
    assert [path.name for path in place.iterdir()] == ["others"]


def test_a_seal_tells_which_files_are_not_as_they_were(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "in/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name * 9)
    check_seal(tmp_path)  # there is none
    seal(tmp_path)
    check_seal(tmp_path)
    (tmp_path / "b").write_text("b" * 8)
    (tmp_path / "c").unlink()
    (tmp_path / "in" / "d").write_text("X")
    with pytest.raises(ValueError, match=r"^b, c, in/d: gone or damaged"):
        check_seal(tmp_path)
