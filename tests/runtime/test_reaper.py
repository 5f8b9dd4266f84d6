import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clawexp.records import Owner
from clawexp.runtime.folder import create
from clawexp.runtime.reaper import sweep
from clawexp.scratch import UNMARKED_S, alive

Owners = Callable[..., Owner]
MAKE = """
import sys
from pathlib import Path
from clawexp.records import Owner
from clawexp.runtime.folder import create
create(Owner(run_id="run", rollout_id="dead", root=Path(sys.argv[1]), proxy_socket=None, proxy_port=1), 1)
"""


def dead_driver(root: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE, str(root)], check=True)


def test_a_sweep_removes_what_dead_drivers_left_and_nothing_else(owner: Owners):
    mine = create(owner("mine"), 1)
    root = owner().root
    dead_driver(root)
    (root / "note.txt").write_text("not a sandbox")
    assert sweep(root) == 1
    assert sorted(path.name for path in root.iterdir()) == ["mine", "note.txt"]
    assert alive(mine.path)


def test_a_name_left_by_a_dead_driver_can_be_used_again(owner: Owners):
    dead_driver(owner().root)
    folder = create(owner("dead"), 1)
    assert alive(folder.path)


def test_a_reused_process_id_is_not_taken_for_the_owner(owner: Owners):
    folder = create(owner(), 1)
    mark = folder.path / "owner"
    host, boot, pid, started, run = mark.read_text().splitlines()
    mark.write_text("\n".join((host, boot, pid, str(int(started) + 1), run)))
    assert not alive(folder.path)
    mark.write_text("\n".join((host, "another-boot", pid, started, run)))
    assert not alive(folder.path)


def test_a_sandbox_of_another_host_is_left_alone(owner: Owners):
    folder = create(owner(), 1)
    mark = folder.path / "owner"
    mark.write_text("\n".join(("elsewhere", *mark.read_text().splitlines()[1:])))
    assert sweep(owner().root) == 0


def test_a_folder_without_an_owner_is_removed_once_it_is_old(tmp_path: Path):
    folder = tmp_path / "r"
    folder.mkdir()
    assert sweep(tmp_path) == 0
    old = time.time() - UNMARKED_S - 1
    os.utime(folder, (old, old))
    assert sweep(tmp_path) == 1


def test_a_root_that_is_not_there_holds_nothing(tmp_path: Path):
    assert sweep(tmp_path / "none") == 0


def test_many_can_sweep_at_once(tmp_path: Path):
    for number in range(150):
        deep = tmp_path / f"run-{number}" / "workspace" / "a" / "b"
        deep.mkdir(parents=True)
        (deep / "f").write_text("1")
        os.utime(tmp_path / f"run-{number}", (0, 0))
    with ThreadPoolExecutor(8) as pool:
        removed = sum(pool.map(lambda _: sweep(tmp_path), range(8)))
    assert removed >= 150
    assert list(tmp_path.iterdir()) == []
