from pathlib import Path

import pytest

from clawexp.whole_folder import whole_folder


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
