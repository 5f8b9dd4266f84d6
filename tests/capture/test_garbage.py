"""What a call leaves in the capture process: nothing that only a full collection would find."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clawexp.capture import garbage
from clawexp.capture.garbage import FEW, MANY, Garbage

PROGRAM = Path(__file__).with_name("leavings.py")


def test_a_call_leaves_nothing_that_refers_to_itself(checkpoint: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-O", str(PROGRAM), str(checkpoint), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    left = json.loads(done.stdout)
    # The last one may not be over yet, and its connection still knows of it.
    assert left.keys() == {"AnsweredStream", "HTTPFlow"}
    assert max(left.values()) <= 1


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Python's own collections come back afterwards."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("by_hand")
def test_connections_are_collected_while_nobody_waits_or_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Garbage()
    assert not gc.isenabled()
    collected: list[int] = []
    monkeypatch.setattr(garbage.gc, "collect", lambda: collected.append(1))
    for _ in range(FEW - 1):
        watch.connection_closed(idle=True)
    watch.connection_closed(idle=False)
    assert not collected
    watch.connection_closed(idle=True)
    assert len(collected) == 1
    for _ in range(MANY):
        watch.connection_closed(idle=False)
    assert len(collected) == 2
