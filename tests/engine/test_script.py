import numpy as np
import pytest
from played import FOLDER, READ, RENDERING, STOP, TOKENIZER, TOOLS, WRITE, asked, says, tools

from clawexp.capture.message import Message, ToolCall
from clawexp.engine.script import CLOSING, WRONG, Script, Unplayable, tool_call_text


def followed(prompt: list[int], answer: list[int], result: str) -> list[int]:
    """The next prompt, after a tool has given its result."""
    added = RENDERING.extend(np.array(prompt), answer, [Message(role="tool", content=result)], TOOLS)
    assert added is not None
    return [*prompt, *answer, *added]


def test_a_solution_is_played_call_by_call_in_the_harness_s_words() -> None:
    script = Script(FOLDER, ())
    script.expect([("Copy a.txt \u2013 all  of it\nto b.txt.", [READ, WRITE]), ("Copy a.txt", [WRITE])])
    prompt = asked("Copy a.txt \u2013 all of it\nto b.txt. Now!")
    expected = [
        tool_call_text("Read", {"file_path": "a.txt"}),
        tool_call_text("Write", {"file_path": "b.txt", "content": WRITE[1]["content"]}),
        CLOSING,
    ]
    for text in expected:
        answer = script.answer(prompt, [STOP])
        assert TOKENIZER.decode(answer[:-1]) == text
        parsed = RENDERING.parse(answer)
        assert parsed.verdict == ("text" if text == CLOSING else "tool_calls")
        prompt = followed(prompt, answer, "ok")


def test_one_script_serves_many_conversations_at_once_and_a_prompt_that_begins_anew() -> None:
    script = Script(FOLDER, ())
    script.expect([("First task.", [READ]), ("Second task.", [WRITE])])
    first, second = says(script, asked("First task.")), says(script, asked("Second task."))
    assert '"Read"' in first
    assert '"Write"' in second
    assert says(script, asked("A summary: the user said: First task.")) == first


def test_where_a_command_ends_the_work_it_is_the_last_call() -> None:
    script = Script(FOLDER, ())
    script.expect([("First task.", [READ])])
    told = "First task. Submit and finish your work by issuing the following command: `echo OVER`. Nothing else."
    prompt = asked(told, tools(bash=["command"]))
    for command in ("cat a.txt", "echo OVER"):
        assert says(script, prompt) == tool_call_text("bash", {"command": command})
        prompt = followed(prompt, script.answer(prompt, [STOP]), "x")
    assert says(script, prompt) == CLOSING


def test_a_side_question_without_tools_gets_a_plain_answer() -> None:
    script = Script(FOLDER, ())
    script.expect([("First task.", [READ])])
    assert says(script, asked("Give this a title: First task.", ())) == CLOSING


def test_a_prompt_about_no_known_task_is_answered_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(FOLDER, ())
    assert says(script, asked("What is this?")) == CLOSING
    assert "no task that was told" in caplog.text


def test_fixed_calls_are_played_whatever_the_task() -> None:
    script = Script(FOLDER, [READ])
    prompt = asked("Anything.")
    assert says(script, prompt) == tool_call_text("Read", {"file_path": "a.txt"})
    assert says(script, followed(prompt, script.answer(prompt, [STOP]), "x")) == CLOSING


def test_what_cannot_be_played_is_said() -> None:
    script = Script(FOLDER, ())
    script.expect([("First task.", [("exec", {"command": "make"})])])
    with pytest.raises(Unplayable, match="'exec', and the harness offers Read, Write"):
        script.answer(asked("First task."), [STOP])
    with pytest.raises(Unplayable, match="stop id"):
        script.answer(asked("First task."), [])
    with pytest.raises(Unplayable, match=r"same instruction, 'Same\.'"):
        script.expect([("Same.", [READ]), ("Same.", [WRITE])])


def test_the_newest_solution_of_an_instruction_counts() -> None:
    script = Script(FOLDER, ())
    script.expect([("Same.", [READ]), ("Same.", [READ])])
    script.expect([("Same.", [WRITE])])
    assert '"Write"' in says(script, asked("Same."))


def test_a_wrong_or_broken_call_is_no_part_of_the_solution() -> None:
    script = Script(FOLDER, ())
    script.expect([("First task.", [READ, WRITE])])
    prompt = asked("First task.")
    for flaw in ("wrong", "malformed", "cut", "empty", None):
        answer = script.answer(prompt, [STOP], flaw)
        parsed = RENDERING.parse(answer)
        expected = {"wrong": "tool_calls", "empty": "text", None: "tool_calls"}.get(flaw, flaw)
        assert parsed.verdict == expected
        assert (answer[-1] == STOP) == (flaw != "cut")
        if parsed.tool_calls:
            path = WRONG if flaw == "wrong" else "a.txt"
            assert parsed.tool_calls[0] == ToolCall(name="Read", arguments={"file_path": path})
        added = RENDERING.extend(np.array(prompt), answer, [Message(role="user", content="Go on.")], TOOLS)
        assert added is not None
        prompt = [*prompt, *answer, *added]
    assert '"Write"' in says(script, prompt)


def test_a_wrong_call_without_a_tool_that_looks_is_the_right_tool_in_vain() -> None:
    script = Script(FOLDER, ())
    script.expect([("First task.", [WRITE])])
    answer = script.answer(asked("First task.", tools(Write=["file_path", "content"])), [STOP], "wrong")
    (call,) = RENDERING.parse(answer).tool_calls
    assert call == ToolCall(name="Write", arguments={"file_path": WRONG, "content": WRONG})
