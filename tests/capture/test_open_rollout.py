"""SIGKILL of the capture process, as `benchmarks/kill_capture.py` does it many more times."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from clawexp.capture.journal import read_calls
from clawexp.capture.tokenizer import Tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KILLS = 10


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("kill_capture")


async def test_no_answered_call_is_lost_in_ten_kills(kill: ModuleType, tmp_path: Path) -> None:
    seen = await kill.kill_often(KILLS, at_once=2, seed=1, folder=tmp_path)
    assert (seen["kills"], seen["cut"]) == (KILLS, KILLS)
    assert seen["kept"] >= seen["received"] > 10 * KILLS
    last = next(each for each in (tmp_path / "run-0/calls").iterdir() if len(read_calls(each)) > 2)
    tokenizer = Tokenizer(tmp_path / "checkpoint")
    with pytest.raises(kill.Fault, match="lacks 1 of 1"):
        kill.look(last, ["0.5"], tokenizer)


def test_a_torn_record_that_is_not_named_is_found_out(
    kill: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawexp.capture.journal._name_torn_tail", lambda *_: None)
    (tmp_path / "x.log").write_bytes(b"00000000 {}")
    with pytest.raises(kill.Fault, match="not named"):
        kill.look(tmp_path / "x.log", [], None)
