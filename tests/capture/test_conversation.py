import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from clawexp.capture.conversation import Conversation
from clawexp.capture.exchange import Exchange
from clawexp.capture.meaning import digests, thought
from clawexp.capture.message import Answer, Message, Request, ToolCall, Tools
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer

SYSTEM = Message(role="system", content="be kind")
TASK = Message(role="user", content="read notes.txt")
RESULT = Message(role="tool", content="x = 4")
TOOLS: Tools = ({"type": "function", "function": {"name": "read"}},)
CALL = '<tool_call>{"name": "read", "arguments": {}}</tool_call>'


class Talk:
    """A conversation to which a test says what was sampled."""

    def __init__(self, rendering: Qwen3Rendering, tokenizer: Tokenizer) -> None:
        self.rendering = rendering
        self.tokenizer = tokenizer
        self.conversation = Conversation(rendering)
        self.position = 0

    def arrive(self, messages: Sequence[Message], tools: Tools = ()) -> Exchange:
        body = hashlib.sha256(repr((messages, tools)).encode()).digest()
        request = Request(
            messages=tuple(messages), tools=tools, requested={}, max_tokens=None, stream=False, stream_usage=False
        )
        self.position += 1
        exchange = self.conversation.arrive(request, body, self.position - 1)
        if not self.conversation.extend(exchange, request):
            self.conversation.render(exchange, request)
        return exchange

    def answer(self, exchange: Exchange, text: str) -> Message:
        ids = self.tokenizer.encode(f"{text}<|im_end|>")
        parsed = self.rendering.parse(ids)
        message = Message(role="assistant", content=parsed.content, tool_calls=parsed.tool_calls)
        answer = Answer(id="", created=0, message=message, finish="stop", prompt_tokens=0, sampled_tokens=len(ids))
        exchange.call_id = f"r/{exchange.position}"
        self.conversation.attach(exchange, ids)
        self.conversation.settle(exchange, answer, digests(answer.message))
        return message

    def say(self, text: str, messages: Sequence[Message], tools: Tools = ()) -> Message:
        return self.answer(self.arrive(messages, tools), text)

    def cause(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[str, str]:
        exchange = self.arrive(messages, tools)
        self.answer(exchange, "ok")
        return exchange.cause, exchange.kind


@pytest.fixture
def talk(qwen3: Qwen3Rendering, tokenizer: Tokenizer) -> Talk:
    return Talk(qwen3, tokenizer)


def test_the_longest_earlier_call_is_continued_whatever_came_between(talk: Talk) -> None:
    first = talk.say(CALL, [TASK])
    second = talk.say(CALL, [TASK, first, RESULT])
    talk.say("aside", [Message(role="user", content="title?")])
    third = talk.arrive([TASK, first, RESULT, second, RESULT])
    talk.conversation.attach(third, [1])
    parent, shared = third.parent, third.shared
    assert third.cause == "continue"
    assert parent is not None
    assert parent.position == 1
    assert parent.sequence is not None
    assert shared == len(parent.sequence)


def test_attachment_does_not_depend_on_the_order_in_which_calls_end(
    qwen3: Qwen3Rendering, tokenizer: Tokenizer
) -> None:
    attached: list[Any] = []
    for order in ((0, 1), (1, 0)):
        talk = Talk(qwen3, tokenizer)
        root = talk.say(CALL, [TASK])
        sides = [talk.arrive([TASK, root, Message(role="tool", content=text)]) for text in ("a", "b")]
        for index in order:
            talk.answer(sides[index], f"told {'ab'[index]}")
        ends = [
            talk.arrive(
                [TASK, root, Message(role="tool", content=t), Message(role="assistant", content=f"told {t}"), TASK]
            )
            for t in ("a", "b")
        ]
        attached.append([(end.prompt.tolist(), end.cause) for end in ends])
    assert attached[0] == attached[1]
    assert {cause for _, cause in attached[0]} == {"continue"}


def test_the_first_call_is_the_root_also_when_an_earlier_one_got_no_answer(talk: Talk) -> None:
    talk.conversation.leave(talk.arrive([TASK]))
    assert talk.cause([TASK]) == ("root", "main")


def test_the_same_messages_again_are_a_retry(talk: Talk) -> None:
    talk.say("ok", [TASK])
    assert talk.cause([TASK]) == ("retry", "main")


def test_a_turn_that_is_asked_for_twice_is_a_retry_with_the_same_prompt(talk: Talk) -> None:
    first = talk.say(CALL, [TASK])
    turn = [TASK, first, RESULT]
    once, again = talk.arrive(turn), talk.arrive(turn)
    talk.answer(once, "the first sample")
    talk.answer(again, "the second sample")
    later = talk.arrive(turn)
    talk.answer(later, "the third sample")
    assert [each.cause for each in (once, again, later)] == ["continue", "retry", "retry"]
    assert again.prompt.tolist() == once.prompt.tolist() == later.prompt.tolist()


def test_a_turn_that_is_asked_for_again_after_its_first_request_was_given_up_is_none(talk: Talk) -> None:
    first = talk.say(CALL, [TASK])
    talk.conversation.leave(talk.arrive([TASK, first, RESULT]))
    assert talk.cause([TASK, first, RESULT]) == ("continue", "main")


def thinking(message: Message, reasoning: str = "I must read it.") -> Message:
    return replace(message, reasoning=reasoning)


def test_reasoning_may_be_dropped_at_any_later_turn(talk: Talk) -> None:
    asked = talk.arrive([TASK])
    first = talk.answer(asked, CALL)
    asked.thought = thought(thinking(first))  # as if it had been sampled, too
    second = talk.arrive([TASK, thinking(first), RESULT])
    said = talk.answer(second, CALL)
    third = talk.arrive([TASK, first, RESULT, said, RESULT])
    talk.answer(third, "4")
    fourth = talk.arrive([TASK, thinking(first), RESULT, said, RESULT, Message(role="assistant", content="4"), TASK])
    assert [each.cause for each in (second, third, fourth)] == ["continue"] * 3
    assert fourth.base is third


def test_other_reasoning_than_was_sampled_is_a_rewrite(talk: Talk) -> None:
    asked = talk.arrive([TASK])
    first = talk.answer(asked, CALL)
    asked.thought = thought(thinking(first))
    second = talk.answer(talk.arrive([TASK, first, RESULT]), CALL)
    other = thinking(first, "I would rather not.")
    assert talk.cause([TASK, other, RESULT, second, RESULT]) == ("rewrite", "main")
    assert talk.cause([TASK, first, RESULT, thinking(second), RESULT]) == ("rewrite", "main")


def test_other_tools_are_a_tool_schema_fork(talk: Talk) -> None:
    first = talk.say(CALL, [SYSTEM, TASK], TOOLS)
    more = (*TOOLS, {"type": "function", "function": {"name": "write"}})
    assert talk.cause([SYSTEM, TASK, first, RESULT], more) == ("tool_schema", "main")


def test_a_tail_that_is_not_kept_is_a_reminder(talk: Talk) -> None:
    tail = Message(role="user", content="<context> nothing runs </context>")
    first = talk.say(CALL, [SYSTEM, TASK, tail], TOOLS)
    assert talk.cause([SYSTEM, TASK, first, RESULT, tail], TOOLS) == ("reminder", "main")


def test_another_system_prompt_while_the_main_conversation_waits_is_a_subagent(talk: Talk) -> None:
    first = talk.say(CALL, [SYSTEM, TASK], TOOLS)
    other = [Message(role="system", content="you are a helper"), Message(role="user", content="look")]
    helper = talk.arrive(other, TOOLS)
    assert (helper.cause, helper.kind) == ("subagent", "auxiliary")
    told = talk.answer(helper, "looked")
    assert talk.cause([*other, told, TASK], TOOLS) == ("continue", "auxiliary")
    assert talk.cause([SYSTEM, TASK, first, RESULT], TOOLS) == ("continue", "main")


def test_a_call_with_tools_is_no_subagent_of_a_title_without(talk: Talk) -> None:
    talk.arrive([Message(role="system", content="write a title"), TASK])
    assert talk.cause([SYSTEM, TASK], TOOLS) == ("rewrite", "main")


def test_a_summary_is_asked_for_aside_and_the_main_conversation_goes_on_from_it(talk: Talk) -> None:
    said = "The notes say that the weather is fine today."
    talk.say(f"{said}{CALL}", [SYSTEM, TASK], TOOLS)
    ask = [Message(role="system", content="summarise"), Message(role="user", content=f"assistant: {said}")]
    summary = talk.arrive(ask)
    assert (summary.cause, summary.kind) == ("compaction", "auxiliary")
    told = talk.answer(summary, "So far the notes were read; the weather is fine.")
    later = [SYSTEM, Message(role="user", content=f"Summary:\n{told.content}\nGo on.")]
    assert talk.cause(later, TOOLS) == ("compaction", "main")


def test_a_call_without_tools_after_an_overflow_is_compaction(talk: Talk) -> None:
    talk.say(CALL, [SYSTEM, TASK], TOOLS)
    talk.conversation.overflow()
    assert talk.cause([Message(role="user", content="shorten")]) == ("compaction", "auxiliary")


def test_changed_history_is_a_rewrite(talk: Talk) -> None:
    talk.say("fine", [SYSTEM, TASK])
    changed = Message(role="assistant", content="never said")
    assert talk.cause([SYSTEM, TASK, changed, TASK]) == ("rewrite", "main")


def test_answers_put_in_between_are_a_rewrite_that_still_shares_tokens(talk: Talk) -> None:
    first = talk.say("fine", [SYSTEM, TASK])
    exchange = talk.arrive([SYSTEM, TASK, first, TASK, Message(role="assistant", content="added"), TASK])
    talk.conversation.attach(exchange, [1])
    parent, shared = exchange.parent, exchange.shared
    # Rendered anew, the answer has the same ids here, so the prompt does begin with the whole call.
    assert exchange.cause == "continue"
    assert parent is not None
    assert parent.sequence is not None
    assert shared == len(parent.sequence)


def test_a_lost_answer_is_given_again_once_asked_with_the_same_bytes(talk: Talk) -> None:
    exchange = talk.arrive([TASK])
    talk.answer(exchange, "ok")
    assert talk.conversation.repeated(exchange.body, retried=False) is None
    exchange.delivered = False
    assert talk.conversation.repeated(exchange.body, retried=False) is exchange
    assert talk.conversation.repeated(exchange.body, retried=False) is None
    assert talk.conversation.repeated(exchange.body, retried=True) is exchange
    assert talk.conversation.repeated(b"other", retried=True) is None


def test_an_answer_that_was_built_on_is_never_given_again(talk: Talk) -> None:
    exchange = talk.arrive([TASK])
    told = talk.answer(exchange, "ok")
    talk.arrive([TASK, told, TASK])
    assert talk.conversation.repeated(exchange.body, retried=True) is None


def test_a_long_conversation_is_held_once(talk: Talk) -> None:
    messages = [TASK]
    exchanges = []
    for _ in range(5):
        exchange = talk.arrive(messages)
        exchanges.append(exchange)
        messages = [*messages, talk.answer(exchange, "ok"), TASK]
    last = exchanges[-1].sequence
    assert all(exchange.sequence.base is last and exchange.prompt.base is last for exchange in exchanges[:-1])
    turn, path = exchanges[-1].end, set()
    while turn is not None:
        path.add(turn)
        turn = turn.above
    assert all(exchange.end in path for exchange in exchanges)


def test_a_question_without_tools_beside_a_conversation_with_tools_is_auxiliary_even_when_that_has_ended(
    talk: Talk,
) -> None:
    talk.say("It is done.", [SYSTEM, TASK], TOOLS)
    assert talk.cause([Message(role="user", content="what comes next?")]) == ("subagent", "auxiliary")
    assert talk.cause([SYSTEM, Message(role="user", content="another task")], TOOLS) == ("rewrite", "main")


def test_what_is_no_call_leaves_no_messages_behind(talk: Talk) -> None:
    said = talk.say("ok", [SYSTEM, TASK])
    kept = turns(talk)
    many = tuple(Message(role="user", content=str(number)) for number in range(50))
    request = Request(
        messages=(SYSTEM, TASK, said, *many), tools=(), requested={}, max_tokens=None, stream=False, stream_usage=False
    )
    assert talk.conversation.count(request) > 50
    assert turns(talk) == kept
    talk.conversation.leave(talk.arrive(request.messages))
    assert turns(talk) == kept
    inner: list[Any] = []
    for _ in range(3000):
        inner = [inner]
    deep = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={"a": inner}),))
    with pytest.raises(RecursionError):
        talk.arrive([*request.messages, deep])
    assert turns(talk) == kept
    # Who asks the same at the same time keeps what both said.
    one, other = talk.arrive(request.messages[:4]), talk.arrive(request.messages[:4])
    talk.conversation.leave(one)
    assert turns(talk) == kept + 2
    talk.answer(other, "ok")
    assert talk.cause([*request.messages[:4], Message(role="assistant", content="ok"), TASK])[0] == "continue"


def turns(talk: Talk) -> int:
    """Messages that the history holds."""
    level, count = [talk.conversation._history._first], 0
    while level:
        found = [turn for below in level for turn in below.values()]
        level, count = [turn.below for turn in found], count + len(found)
    return count
