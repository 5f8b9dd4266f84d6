import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.runtime import enclosure
from clawexp.runtime.rootless import call, enclosed

ENV = {"PATH": "/usr/bin:/bin"}
Processes = Callable[[str], list[int]]


def said(script: str, shown: tuple[Path, ...] = ()) -> list[str]:
    """The words that a shell script prints inside."""
    return call(["sh", "-c", script], ENV, shown, 60).split()


def test_the_program_is_root_inside_and_nobody_outside(tmp_path: Path) -> None:
    words = said(f"id -u; id -G; touch {tmp_path}/x 2>/dev/null || echo closed; cat /proc/self/uid_map")
    assert words[:2] == ["0", "0"]
    if os.getuid() == 0:
        assert words[2] == "closed"
        assert int(words[4]) >= 100_000


def test_it_sees_no_process_but_its_own() -> None:
    numbers = [int(word) for word in said("ls /proc") if word.isdigit()]
    assert numbers[0] == 1
    assert len(numbers) <= 4


def test_a_shown_folder_is_reached_whoever_may_pass_its_parents(tmp_path: Path) -> None:
    private = tmp_path / "private"
    folder = private / "deep" / "shown"
    folder.mkdir(parents=True)
    (folder / "note").write_text("hello")
    (private / "secret").write_text("no")
    private.chmod(0o700)
    assert said(f"cat {folder}/note; echo; ls {private}", (folder,)) == ["hello", "deep"]
    assert said(f"cat {folder}/note 2>/dev/null || echo closed") == ["closed"] if os.getuid() == 0 else ["hello"]
    assert sorted(path.name for path in private.iterdir()) == ["deep", "secret"]


def test_a_folder_that_cannot_be_shown_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    if os.getuid() == 0:
        with pytest.raises(RuntimeFault, match=f"chmod o\\+x {folder}"):
            said("true", (folder,))
    else:  # a user's own folders are open to it
        assert said("echo open", (folder,)) == ["open"]


def test_how_the_program_ended_is_told() -> None:
    with pytest.raises(RuntimeFault, match=r"ended with 7: the cause"):
        said("echo the cause >&2; exit 7")
    with pytest.raises(RuntimeFault, match="ended with 137"):
        said("kill -KILL $$")
    with pytest.raises(RuntimeFault, match="no-such-program"):
        call(["no-such-program"], ENV, [], 60)


def test_a_program_that_takes_too_long_is_ended(processes: Processes) -> None:
    with pytest.raises(RuntimeFault, match="not done within 1 s"):
        call(["sh", "-c", "setsid sleep 456781 & sleep 456782"], ENV, [], 1)
    assert processes("45678") == []


@pytest.mark.parametrize("victim", ["driver", "enclosure"])
def test_what_was_detached_ends_with_the_driver(victim: str, processes: Processes) -> None:
    argv = enclosed(["sh", "-c", "setsid setsid sleep 345671 & echo ready; sleep 345672"], ENV, [])
    program = (
        "import os, subprocess, sys\n"
        "argv = [str(os.getpid()) if word == 'PARENT' else word for word in sys.argv[1:]]\n"
        "with subprocess.Popen(argv) as child: print(child.pid, flush=True)\n"
    )
    words = ["PARENT" if word == str(os.getpid()) else word for word in argv]
    with subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        child = int(driver.stdout.readline())
        assert driver.stdout.readline() == b"ready\n"
        os.kill(driver.pid if victim == "driver" else child, 9)
        # Its end is the end of all who hold the pipe.
        assert driver.stdout.read() == b""
        driver.kill()
    assert processes("34567") == []


def test_a_failed_system_call_says_which_and_why() -> None:
    with pytest.raises(OSError, match="mount /no/such/place: No such file or directory"):
        enclosure.mount("tmpfs", "/no/such/place", "tmpfs", 0)
