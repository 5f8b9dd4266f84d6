import pytest
from pydantic import ValidationError

from clawexp.engine.flaws import Faults, Flaws

KEYS = [f"3/rollout-{number}/{call}" for number in range(200) for call in range(10)]


def flaws(**shares: float) -> Flaws:
    return Flaws(**dict.fromkeys(("wrong", "malformed", "empty", "cut", "faults"), 0.0) | shares)


def test_each_flaw_has_its_share_and_a_call_always_has_the_same() -> None:
    options = flaws(wrong=0.3, malformed=0.1, cut=0.2)
    drawn = [options.of(key) for key in KEYS]
    assert drawn == [options.of(key) for key in KEYS]
    shares = {flaw: drawn.count(flaw) / len(KEYS) for flaw in (None, "wrong", "malformed", "empty", "cut")}
    # Four standard deviations of a share of 2000 draws are 0.045 at most.
    assert shares == pytest.approx({None: 0.4, "wrong": 0.3, "malformed": 0.1, "empty": 0.0, "cut": 0.2}, abs=0.045)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_or_nothing(share: float) -> None:
    assert {flaws(empty=share).of(key) for key in KEYS} == ({"empty"} if share else {None})
    assert {Faults(share).of(key) for key in KEYS} == ({"error", "dropped"} if share else {None})


def test_only_the_first_try_of_a_call_fails() -> None:
    faults = Faults(0.5)
    first, second = ([faults.of(key) for key in KEYS] for _ in range(2))
    assert first.count(None) / len(KEYS) == pytest.approx(0.5, abs=0.045)
    assert first.count("error") / len(KEYS) == pytest.approx(0.25, abs=0.04)
    assert set(second) == {None}


def test_shares_beyond_all_answers_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"are 1\.2 together"):
        flaws(wrong=0.6, cut=0.6)
    with pytest.raises(ValidationError, match="faults"):
        flaws(faults=1.5)
    assert flaws(wrong=0.1, malformed=0.2, empty=0.3, cut=0.4, faults=1.0)
