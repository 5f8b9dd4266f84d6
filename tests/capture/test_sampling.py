from dataclasses import replace

import pytest

from clawexp.capture.message import Message, Refused, Request
from clawexp.capture.sampling import decide, room_for


def request(max_tokens: int | None = None, **requested: object) -> Request:
    messages = (Message(role="user", content="x"),)
    return Request(
        messages=messages,
        tools=({"type": "function", "function": {"name": "read"}},),
        requested=requested,
        max_tokens=max_tokens,
        stream=False,
        stream_usage=False,
    )


def test_truncating_samplers_are_overridden_and_noted() -> None:
    submitted, edits = decide(request(temperature=0.2, top_p=0.9, top_k=20, min_p=0.1, tool_choice="required"), 1.0, 10)
    assert submitted == {"temperature": 1.0, "max_tokens": 10}
    noted = {edit.rule: (edit.before, edit.after) for edit in edits}
    assert noted == {
        "sampling.temperature": (0.2, 1.0),
        "sampling.top_p": (0.9, 1.0),
        "sampling.top_k": (20, -1),
        "sampling.min_p": (0.1, 0.0),
        "sampling.tool_choice": ("required", "auto"),
    }


def test_what_changes_nothing_is_no_edit() -> None:
    _, edits = decide(request(temperature=1, top_p=1, n=1, stop=None, tool_choice="auto", logit_bias={}), 1.0, 10)
    assert edits == ()


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "any"}])
def test_a_choice_among_no_tools_is_none_and_noted(choice: object) -> None:
    _, (edit,) = decide(replace(request(tool_choice=choice), tools=()), 1.0, 10)
    assert (edit.rule, edit.before, edit.after) == ("tools.choice_without_tools", choice, None)


def test_the_smaller_limit_holds() -> None:
    assert decide(request(5), 1.0, 10)[0]["max_tokens"] == 5
    submitted, (edit,) = decide(request(50), 1.0, 10)
    assert submitted["max_tokens"] == 10
    assert (edit.before, edit.after) == (50, 10)


def test_an_answer_never_leaves_the_context() -> None:
    assert room_for(90, 100, 256) == 10
    with pytest.raises(Refused, match="100 tokens; the context holds 100"):
        room_for(100, 100, 256)
