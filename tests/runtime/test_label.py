import os
import time
from pathlib import Path

from clawexp.runtime.label import FILE, labelled, new_label, write_label


def test_what_is_written_is_read_and_other_folders_are_passed_over(tmp_path: Path) -> None:
    for name in ("run-1/a", "run-1/b", "run-2/broken", "run-2/none"):
        (tmp_path / name).mkdir(parents=True)
    first, second = new_label("run-1", "a", "podman"), new_label("run-1", "b", "local")
    write_label(tmp_path / "run-1/b", second)
    write_label(tmp_path / "run-1/a", first)
    (tmp_path / "run-2/broken" / FILE).write_text('{"run": ')
    assert list(labelled(tmp_path)) == [(tmp_path / "run-1/a", first), (tmp_path / "run-1/b", second)]


def test_a_label_says_whether_its_driver_lives() -> None:
    label = new_label("run", "r", "bubblewrap")
    assert label.owned
    assert label.owner.startswith(f"{os.getpid()}:")
    assert not new_label("run", "r", "x").__class__(**{**vars(label), "owner": f"{os.getpid()}:1"}).owned


def test_a_container_carries_it() -> None:
    labels = new_label("run", "r", "podman").labels()
    assert {"clawexp.run": "run", "clawexp.rollout": "r"}.items() <= labels.items()
    assert int(labels["clawexp.expires"]) > time.time()
