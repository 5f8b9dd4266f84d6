"""Sandboxes for the tests of this room."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.records import Owner, Sandbox, Task, Verdict


class AnyGrader:
    """Every result is right."""

    async def grade(self, sandbox: Sandbox) -> Verdict:
        return Verdict(score=1.0)


@pytest.fixture
def task() -> Task:
    return Task(id="t", instruction="Do it.", files={"data/a.txt": b"alpha"}, grader=AnyGrader(), split="train")


@pytest.fixture
def owner(tmp_path: Path) -> Callable[..., Owner]:
    """Makes owners of sandboxes under one root."""

    def make(rollout_id: str = "r1", socket: Path | None = None) -> Owner:
        return Owner(run_id="run", rollout_id=rollout_id, root=tmp_path / "boxes", proxy_socket=socket, proxy_port=8089)

    return make


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    """Finds the host's processes with a word in their command line."""

    def find(word: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            # A process may end between the listing and the look.
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    return find
