import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clawexp.runtime import door

Ordered = Callable[..., tuple[dict[str, Any], bytes, bytes]]


@pytest.fixture
def ordered(tmp_path: Path) -> Iterator[Ordered]:
    """Gives a door one order, in parts; its report, and what the command wrote to its output and errors."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)

        def order(*argv: str, cwd: str = "/", stdin: bytes = b"", **env: str):
            files = [tmp_path / name for name in ("in", "out", "err")]
            files[0].write_bytes(stdin)
            descriptors = [os.open(file, os.O_RDWR | os.O_CREAT) for file in files]
            text = json.dumps({"argv": argv, "env": env, "cwd": cwd}).encode() + b"\n"
            with subprocess.Popen([sys.executable, "-I", "-S", door.__file__, path], env={"LEFT": "over"}):
                driver, _ = listener.accept()
                with driver:
                    socket.send_fds(driver, [text[:10]], descriptors)
                    driver.sendall(text[10:])
                    report = driver.makefile("rb").read()
            for descriptor in descriptors:
                os.close(descriptor)
            return json.loads(report), files[1].read_bytes(), files[2].read_bytes()

        yield order


def test_a_command_gets_its_input_folder_and_environment_and_nothing_else(ordered: Ordered, tmp_path: Path) -> None:
    script = "cat; pwd; env | grep -v '^_' | sort; echo bad >&2; ls /proc/self/fd | wc -l; exit 5"
    report, out, err = ordered("/bin/sh", "-c", script, cwd=str(tmp_path), stdin=b"given\n", WORD="yes", PATH="/bin")
    assert report == {"code": 5}
    lines = out.decode().split()
    assert lines[:-1] == ["given", str(tmp_path), "PATH=/bin", f"PWD={tmp_path}", "WORD=yes"]
    assert int(lines[-1]) <= 4
    assert err == b"bad\n"


def test_an_order_of_any_length_is_taken(ordered: Ordered) -> None:
    words = ["word" * 20] * 5000
    report, out, _ = ordered("/bin/sh", "-c", "echo $#", "sh", *words)
    assert (report, out) == ({"code": 0}, b"5000\n")


def test_signals_are_told_and_not_ignored_by_the_command(ordered: Ordered) -> None:
    assert ordered("/bin/sh", "-c", "kill -PIPE $$; exit 0")[0] == {"code": -13}


def test_what_could_not_be_started_is_told(ordered: Ordered) -> None:
    report, _, err = ordered("no-such-program")
    assert (report, err) == ({"code": 127}, b"no-such-program: No such file or directory\n")
    assert "/nowhere" in ordered("true", cwd="/nowhere")[0]["error"]


def test_the_end_of_the_command_is_told_though_what_it_started_goes_on(ordered: Ordered) -> None:
    report, _, _ = ordered("/bin/sh", "-c", "sleep 30 & exit 3")
    assert report == {"code": 3}
