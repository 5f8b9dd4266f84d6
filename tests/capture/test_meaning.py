import json

from hypothesis import given, settings
from hypothesis import strategies as st

from clawexp.capture.meaning import meaning, stringify, thought, tools_meaning
from clawexp.capture.message import Message, ToolCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def call(arguments: object, call_id: str = "") -> Message:
    return Message(role="assistant", content="Hm.", tool_calls=(ToolCall("read", arguments, call_id),))


@settings(deadline=None)
@given(arguments=st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_arguments_that_went_through_a_harness_mean_the_same(arguments: dict[str, object]) -> None:
    echoed = json.loads(stringify(arguments))
    assert meaning(call(arguments, "a")) == meaning(call(echoed, "b"))
    assert stringify(echoed) == stringify(arguments)


def test_text_is_compact_and_raw() -> None:
    assert stringify({"a": 1.0, "b": [True, None], "c": 'é☕"\n'}) == '{"a":1,"b":[true,null],"c":"é☕\\"\\n"}'


def test_half_a_surrogate_pair_is_escaped_as_javascript_does() -> None:
    assert stringify({"a": "\ud83d"}) == '{"a":"\\ud83d"}'
    assert stringify(["\ud83d", 10**20, "é"]) == '["\\ud83d",100000000000000000000,"é"]'


def test_large_numbers_are_compared_as_doubles() -> None:
    assert meaning(call({"n": 2**60 + 1})) == meaning(call({"n": 2**60}))


def test_numbers_that_javascript_cannot_hold_are_null() -> None:
    assert stringify([10**400, -(10**400), 1e400]) == "[null,null,null]"


def test_numbers_are_written_as_javascript_writes_them() -> None:
    assert stringify([1e-6, -1.5e-6, 0.0000012345]) == "[0.000001,-0.0000015,0.0000012345]"
    numbers = [1e21, 10**21, 123456789012345680000, 1e-5, 1.5e-7, -0.0, 0.1, 1e20]
    assert stringify(numbers) == "[1e+21,1e+21,123456789012345680000,0.00001,1.5e-7,0,0.1,100000000000000000000]"


def test_other_words_other_arguments_and_other_roles_mean_something_else() -> None:
    messages = [
        call({"a": 1}),
        call({"a": 2}),
        call({"a": "1"}),
        Message(role="assistant", content="Hm."),
        Message(role="assistant", content="Ha."),
        Message(role="user", content="Hm."),
        Message(role="user", content="Hm. "),
    ]
    assert len({meaning(message) for message in messages}) == len(messages)


def test_reasoning_is_compared_apart_from_what_is_said() -> None:
    answer = Message(role="assistant", content="Hm.", reasoning=" because\n")
    assert meaning(Message(role="assistant", content="Hm.")) == meaning(answer)
    assert thought(Message(role="assistant", content="Ha.", reasoning="because")) == thought(answer)
    assert thought(Message(role="assistant", content="Hm.", reasoning="why not")) != thought(answer)
    assert thought(Message(role="assistant", content="Hm.", reasoning=" ")) == b""


def test_tools_are_compared_as_they_are_rendered() -> None:
    a, b = {"function": {"name": "a"}}, {"function": {"name": "b"}}
    assert tools_meaning((a, b)) != tools_meaning((b, a))


def test_a_number_that_javascript_cannot_hold_is_what_it_writes_for_it() -> None:
    assert stringify({"n": 10**400, "m": -(10**400)}) == '{"n":null,"m":null}'
