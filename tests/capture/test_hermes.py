import pytest

from clawexp.capture.hermes import parse_text
from clawexp.capture.message import ToolCall


def test_content_reasoning_and_calls_are_told_apart() -> None:
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
    parsed = parse_text(f"<think>\nwhy\n</think>\n\nReading.\n{call}\n{call}", ended=True)
    assert (parsed.reasoning, parsed.content, parsed.verdict) == ("why", "Reading.", "tool_calls")
    assert parsed.tool_calls == (ToolCall("read", {"path": "a"}),) * 2


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "read", "arguments": {"path": </tool_call>',
        '{"name": "read"',
        '{"name": "", "arguments": {}}</tool_call>',
        '{"name": 3, "arguments": {}}</tool_call>',
        '{"name": "read", "arguments": "a"}</tool_call>',
        '{"name": "read", "arguments": {"n": NaN}}</tool_call>',
        '{"name": "read", "arguments": {"n": ' + "1" * 5000 + "}}</tool_call>",
        '{"name": "read", "arguments": {"n": [' + "1" * 400 + "]}}</tool_call>",
        "[" * 100_000 + "</tool_call>",
        "[]</tool_call>",
    ],
    ids=["json", "unclosed", "no name", "name", "arguments", "nan", "digits", "infinite", "depth", "list"],
)
def test_one_broken_call_makes_the_whole_answer_text(body: str) -> None:
    good = '<tool_call>{"name": "read", "arguments": {}}</tool_call>'
    text = f"Reading.{good}<tool_call>{body}"
    parsed = parse_text(text, ended=True)
    assert (parsed.verdict, parsed.content, parsed.tool_calls) == ("malformed", text, ())


def test_nothing_of_a_cut_answer_is_executed() -> None:
    text = 'Reading.<tool_call>{"name": "read", "arguments": {}}</tool_call> and'
    parsed = parse_text(text, ended=False)
    assert (parsed.verdict, parsed.content, parsed.tool_calls) == ("cut", text, ())


@pytest.mark.parametrize(("depth", "verdict"), [(100, "tool_calls"), (200, "malformed"), (900, "malformed")])
def test_arguments_that_nest_deeper_than_others_read_them_are_text(depth: int, verdict: str) -> None:
    inner = "[" * depth + "]" * depth
    parsed = parse_text(f'<tool_call>{{"name": "f", "arguments": {{"a": {inner}}}}}</tool_call>', ended=True)
    assert parsed.verdict == verdict
