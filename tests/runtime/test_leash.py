import os
import subprocess
import sys

from clawexp.runtime import leash


def run(parent: int, *argv: str) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-I", "-S", leash.__file__, str(parent), *argv]
    return subprocess.run(program, capture_output=True)


def test_the_program_takes_its_place():
    done = run(os.getpid(), "sh", "-c", "echo here; exit 6")
    assert (done.returncode, done.stdout) == (6, b"here\n")


def test_it_does_not_start_under_another_parent():
    assert run(1, "echo", "here").stdout == b""


def test_a_missing_program_is_told():
    done = run(os.getpid(), "no-such-program")
    assert (done.returncode, done.stderr) == (127, b"no-such-program: No such file or directory\n")
