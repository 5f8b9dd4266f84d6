import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawexp.quick_json import dumps, loads

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON)
def test_what_is_written_is_read_back_by_anybody(value: object) -> None:
    assert json.loads(dumps(value)) == value
    small = json.dumps(value).encode()
    assert loads(small) == json.loads(small) or abs(max(_numbers(value), key=abs)) >= 2**63


def _numbers(value: object) -> list[float]:
    """Those of 64 bits and more are read as doubles."""
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


@given(value=st.dictionaries(st.text(), JSON, min_size=2))
def test_sorted_keys_leave_nothing_to_order(value: dict[str, object]) -> None:
    assert dumps(value, sort=True) == dumps(dict(reversed(value.items())), sort=True)


def test_half_a_surrogate_pair_and_long_integers_are_written_and_read() -> None:
    for value in ({"a": "\ud83d"}, [2**70]):
        assert json.loads(dumps(value)) == value
    assert loads('"\\ud83d"') == "\ud83d"


@pytest.mark.parametrize("text", ["", "{", "[1,]", b"\xff"])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        loads(text)
