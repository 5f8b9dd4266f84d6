"""Random harnesses, as `benchmarks/fuzz_capture.py` makes many more of them: the journal's ids are the oracle's."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from clawexp.capture.conversation import Conversation
from clawexp.capture.exchange import Exchange
from clawexp.capture.history import View
from clawexp.capture.message import Request

PROGRAM = Path(__file__).parents[2] / "benchmarks/fuzz_capture.py"
ROLLOUTS = 600


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_capture", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_every_prompt_of_random_harnesses_is_the_oracles(fuzz: ModuleType, tmp_path: Path) -> None:
    seen, wrong = fuzz.play(str(tmp_path), range(ROLLOUTS))
    assert wrong is None
    assert seen["rollouts"] == ROLLOUTS
    assert min(seen[what] for what in ("left", "replayed", "undelivered", "compacted", "rewritten")) > 50
    assert min(seen[f"fork {cause}"] for cause in ("reminder", "retry", "rewrite", "subagent")) > 50


def test_a_matcher_that_always_forks_is_found_out(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversation, "_added", lambda *_: None)
    _, wrong = fuzz.play(str(tmp_path), range(20))
    assert "another prompt than the oracle's" in wrong


def test_a_matcher_that_takes_any_earlier_call_is_found_out(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(self: Conversation, view: View) -> Exchange | None:
        return next((each for each in self._exchanges if each.begins(view)), None)

    monkeypatch.setattr(Conversation, "_longest", first)
    _, wrong = fuzz.play(str(tmp_path), range(100))
    assert "another prompt than the oracle's" in wrong


def test_an_answer_that_is_encoded_again_is_found_out(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Conversation.extend

    def again(self: Conversation, exchange: Exchange, request: Request) -> bool:
        extended = exact(self, exchange, request)
        exchange.prompt = exchange.prompt[exchange.prompt != fuzz.FILLER]
        return extended

    monkeypatch.setattr(Conversation, "extend", again)
    _, wrong = fuzz.play(str(tmp_path), range(20))
    assert "another prompt than the oracle's" in wrong
