import hashlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from bench import CALL, SCHEMA, assert_exact_chain
from hydra.utils import instantiate
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from stub_engine import StubEngine, model_of, options_of, serve_stub

from clawexp.capture.boundary import Closed, boundary
from clawexp.capture.message import Message, Refused, Request, ToolCall, Tools
from clawexp.capture.rules import Rules, limited
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import CaptureError
from clawexp.outcome import Outcome
from clawexp.records import Call, Edit, Rollout
from clawexp.rule import Block, CapMaxTokens, Drop, Inject, Replace, Rule
from clawexp.tree.forest import prune
from clawexp.tree.tree import grow

SYSTEM = Message(role="system", content="Be good. Today's date is 2026-11-29.")
TASK = Message(role="user", content="[Sun 2026-11-29 15:33 UTC] Read notes.txt.")
HISTORY = "commit 0123"


def replaces(part: Any, pattern: Any, by: str, tools: Any = None) -> Replace:
    return Replace(part=part, tools=tools, pattern=pattern, by=by)


def blocks(part: Any, pattern: Any, notice: str, tools: Any = None) -> Block:
    return Block(part=part, tools=tools, pattern=pattern, notice=notice)


def drops(part: Any, pattern: Any, tools: Any = None) -> Drop:
    return Drop(part=part, tools=tools, pattern=pattern)


def of(**rules: Rule) -> Rules:
    return Rules({f"mine.{name}": rule for name, rule in rules.items()})


def request(*messages: Message, tools: Tools = (), max_tokens: int | None = None) -> Request:
    return Request(
        messages=messages, tools=tools, requested={}, max_tokens=max_tokens, stream=False, stream_usage=False
    )


def called(*calls: tuple[str, str]) -> Message:
    return Message(role="assistant", tool_calls=tuple(ToolCall(name=name, arguments={}, id=id) for name, id in calls))


def result(text: str, id: str = "") -> Message:
    return Message(role="tool", content=text, tool_call_id=id)


def test_a_match_is_replaced_and_the_edit_says_what_stood_there() -> None:
    rules = of(date=replaces("system", r"(date is )[\d-]+", r"\g<1>X"), clock=replaces("user", r"\A\[.*?\] ", ""))
    found = rules.request(request(SYSTEM, TASK))
    assert [message.content for message in found.messages] == ["Be good. Today's date is X.", "Read notes.txt."]
    assert found.message_edits == (
        (0, Edit(rule="rules.mine.date", before=SYSTEM.content, after="Be good. Today's date is X.")),
        (1, Edit(rule="rules.mine.clock", before=TASK.content, after="Read notes.txt.")),
    )


def test_a_result_is_blocked_by_the_name_of_its_tool_with_or_without_ids() -> None:
    rules = of(log=blocks("tool_result", "^commit", "gone", tools="bash|exec"))
    for ids in (("a", "b"), ("", "")):
        turn = called(("read", ids[0]), ("bash", ids[1]))
        found = rules.request(request(TASK, turn, result(HISTORY, ids[0]), result(HISTORY, ids[1])))
        assert [message.content for message in found.messages[2:]] == [HISTORY, "gone"]
    turn = called(("read", "a"), ("bash", "b"))
    swapped = rules.request(request(TASK, turn, result(HISTORY, "b"), result(HISTORY, "a")))
    assert [message.content for message in swapped.messages[2:]] == ["gone", HISTORY]


def test_a_message_is_dropped_and_its_edit_stands_where_it_stood() -> None:
    found = of(hint=drops("user", "hint")).request(request(TASK, Message(role="user", content="a hint"), called()))
    assert found.messages == (TASK, called())
    assert found.message_edits == ((1, Edit(rule="rules.mine.hint", before="a hint", after=None)),)
    with pytest.raises(Refused, match="leave no message"):
        of(all=drops("user", "")).request(request(TASK))


def test_a_text_is_put_into_the_first_message_alone_and_a_system_prompt_is_made() -> None:
    rules = of(short=Inject(part="system", text="Short.", at="end"), now=Inject(part="user", text="Now: ", at="start"))
    found = rules.request(request(TASK, called(), TASK))
    assert [message.content for message in found.messages] == ["Short.", f"Now: {TASK.content}", "", TASK.content]
    assert found.message_edits[0] == (0, Edit(rule="rules.mine.short", before=None, after="Short."))
    found = rules.request(request(SYSTEM, TASK))
    assert found.messages[0].content == f"{SYSTEM.content}Short."


def test_descriptions_of_tools_are_changed_and_tools_taken_away() -> None:
    tools: Tools = tuple(
        {"type": "function", "function": {"name": name, "description": f"Use {name} at 15:33.", "parameters": {}}}
        for name in ("read", "web_search")
    )
    rules = of(
        web=drops("tool_description", "", tools="web_.*"), clock=replaces("tool_description", r"\d+:\d+", "noon")
    )
    found = rules.request(request(TASK, tools=tools))
    (read,) = found.tools
    assert read["function"]["description"] == "Use read at noon."
    assert list(read["function"]) == ["name", "description", "parameters"]
    assert [edit.rule for edit in found.tool_edits] == ["rules.mine.web", "rules.mine.clock"]


@pytest.mark.parametrize(("asked", "given", "noted"), [(None, 64, True), (100, 64, True), (10, 10, False)])
def test_the_limit_on_answers_is_the_lower_one(asked: int | None, given: int, noted: bool) -> None:
    found = of(cap=CapMaxTokens(max_tokens=64)).request(request(TASK, max_tokens=asked))
    assert found.max_tokens == given
    assert found.edits == ((Edit(rule="rules.mine.cap", before=asked, after=64),) if noted else ())


def test_an_answer_is_rewritten_in_its_words_and_in_its_calls() -> None:
    told = Message(
        role="assistant",
        content="I push.",
        reasoning="push it",
        tool_calls=(ToolCall(name="bash", arguments={"push": ["git push", 1]}),),
    )
    after, (edit,) = of(push=replaces("answer", "push", "pull")).answer(told)
    assert (after.content, after.reasoning) == ("I pull.", "pull it")
    assert after.tool_calls[0].arguments == {"push": ["git pull", 1]}
    assert edit.before["tool_calls"] == [{"name": "bash", "arguments": {"push": ["git push", 1]}}]
    blocked, edits = of(push=blocks("answer", "git push", "Not here.")).answer(told)
    assert blocked == Message(role="assistant", content="Not here.")
    assert len(edits) == 1
    assert of(push=blocks("answer", "git fetch", "")).answer(told) == (told, ())


def test_a_pattern_that_backtracks_without_end_is_stopped() -> None:
    begin = time.monotonic()
    with pytest.raises(CaptureError, match=r"rule mine\.bad took more than"):
        of(bad=replaces("user", "(a+)+$", "")).request(request(Message(role="user", content="a" * 60 + "b")))
    assert time.monotonic() - begin < 60


HISTORIES = (
    *("log", "log --oneline", "log --oneline --graph --all", "log -p -1", "show HEAD", "reflog", "reflog -1"),
    *("blame notes.txt", "show --stat HEAD~1", "log --stat"),
)
PLAIN = (
    *("git status", "git diff HEAD~1", "ls -la", "cat notes.txt", "sha256sum notes.txt notes.txt", "od -x notes.txt"),
    *("md5sum notes.txt notes.txt", "cksum notes.txt", "wc notes.txt", "git branch -a"),
)


def test_the_usual_listings_of_a_repositorys_history_are_blocked_and_nothing_else(tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "conf/capture/rules/git_history.yaml"
    rules = Rules({str(name): instantiate(rule) for name, rule in OmegaConf.load(file).items()})
    who = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def told(command: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_PAGER": "cat", **who}
        done = subprocess.run(shlex.split(command), cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        output = done.stdout
        return rules.request(request(TASK, Message(role="tool", content=output))).messages[1].content.strip()

    told("git init -q .")
    for number in range(6):
        with (tmp_path / "notes.txt").open("a") as notes:
            notes.write(f"line {number}\n" * 3)
        told("git add notes.txt")
        told(f"git commit -qm 'turn {number}'")
    blocked = "The history of this repository is not available."
    assert {command: told(f"git {command}") for command in HISTORIES} == dict.fromkeys(HISTORIES, blocked)
    assert [command for command in PLAIN if told(command) == blocked] == []


def test_the_time_of_other_threads_is_not_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawexp.capture.rules.LONGEST_S", 0.2)
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            hashlib.sha256(bytes(2**22))  # beside the interpreter's lock

    others = [threading.Thread(target=work) for _ in range(2)]
    for each in others:
        each.start()
    try:
        with limited("mine.patient"):
            begin = time.process_time()
            while time.process_time() - begin < 1:
                time.sleep(0.01)
    finally:
        ended.set()
        for each in others:
            each.join()


TEXTS = st.sampled_from(["a hint", "leak 1", "date 2", "", "plain"])
MESSAGES = st.builds(
    lambda role, text, tool: Message(
        role=role, content=text, tool_calls=(ToolCall(name=tool, arguments={}),) if role == "assistant" else ()
    ),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXTS,
    st.sampled_from(["read", "bash"]),
)
ALL = of(
    hint=drops("user", "hint"),
    date=replaces("system", r"\d", "0"),
    leak=blocks("tool_result", "leak", "gone", tools="bash"),
    results=drops("tool_result", "date"),
    short=Inject(part="system", text=" short", at="start"),
    now=Inject(part="user", text="now ", at="end"),
)


@settings(deadline=None)
@example([Message(role="tool", content="date 2"), Message(role="system", content="a hint")], 0)
@given(st.lists(MESSAGES, min_size=1, max_size=12), st.integers(0, 12))
def test_what_is_appended_changes_nothing_before_it(messages: list[Message], at: int) -> None:
    whole = ALL.request(request(*messages)).messages
    begin = ALL.request(request(*messages[: at + 1])).messages
    assert whole[: len(begin)] == begin


TOOLS: Any = [{"type": "function", "function": {"name": "read", "description": "At 15:33.", "parameters": SCHEMA}}]


class Talk:
    """A harness with the official client, whose clock goes on."""

    def __init__(self, client: openai.AsyncOpenAI, engine: StubEngine) -> None:
        self.client, self.engine = client, engine
        self.messages: list[Any] = []
        self.minute = 0

    async def turn(self, say: str, tell: str) -> Any:
        """The model says something, and is told something."""
        self.engine.say(say)
        self.minute += 1
        system: Any = {"role": "system", "content": f"It is 15:{self.minute}."}
        task: Any = {"role": "user", "content": "Read."}
        answer = await self.client.chat.completions.create(
            model="tiny", messages=[system, task, *self.messages], tools=TOOLS
        )
        message = answer.choices[0].message.model_dump(exclude_none=True)
        calls = message.get("tool_calls") or []
        told = [{"role": "tool", "tool_call_id": call["id"], "content": tell} for call in calls]
        self.messages += [message, *(told or [{"role": "user", "content": tell}])]
        return answer.choices[0]


async def talked(
    rules: dict[str, Rule], turns: Sequence[tuple[str, str]], tokenizer: Tokenizer, checkpoint: Path, folder: Path
) -> tuple[Closed, StubEngine, list[Any]]:
    """A conversation under rules."""
    options, model = options_of(rules={"mine": rules}), model_of(checkpoint)
    async with serve_stub(tokenizer) as engine, boundary(options, model, engine.url, "secret", folder) as live:
        key = await live.open("r", seed=1)
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{live.door('r').port}/v1", api_key=key) as client:
            talk = Talk(client, engine)
            choices = [await talk.turn(say, tell) for say, tell in turns]
        return await live.close("r"), engine, choices


async def test_the_model_sees_what_the_rules_leave_calls_go_on_and_each_edit_is_noted_once(
    tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path
) -> None:
    rules: dict[str, Rule] = {
        "clock": replaces("system", r"15:\d+", "noon"),
        "log": blocks("tool_result", "^commit", "gone", tools="read"),
        "tools": replaces("tool_description", r"\d+:\d+", "noon"),
        "hint": drops("user", "hint"),
        "cap": CapMaxTokens(max_tokens=100),
    }
    turns = [*[(f"Turn {turn}.\n{CALL}", f"commit {turn}") for turn in range(6)], ("Fine.", "a hint"), ("Done.", "")]
    closed, engine, _ = await talked(rules, turns, tokenizer, checkpoint, tmp_path)
    assert_exact_chain(closed.calls[:7])
    prompts = [tokenizer.decode(asked["token_ids"]) for asked in engine.requests]
    assert "15:" not in "".join(prompts)
    assert "commit" not in "".join(prompts)
    assert prompts[-1].count("gone") == 6
    assert {asked["sampling_params"]["max_tokens"] for asked in engine.requests} == {100}
    noted = [[edit.rule for edit in call.edits] for call in closed.calls]
    assert noted[0] == ["rules.mine.tools", "rules.mine.clock", "rules.mine.cap"]
    assert noted[1:7] == [["rules.mine.log", "rules.mine.cap"]] * 6
    assert noted[7] == ["rules.mine.hint", "rules.mine.cap"]
    assert closed.calls[3].edits[0] == Edit(rule="rules.mine.log", before="commit 2", after="gone")
    assert closed.counts["rules"] == {"mine.clock": 1, "mine.tools": 1, "mine.log": 6, "mine.hint": 1, "mine.cap": 8}


async def test_a_rewritten_answer_is_a_fork_and_is_trained_by_no_option(
    tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path
) -> None:
    rules: dict[str, Rule] = {
        "clock": replaces("system", r"15:\d+", "noon"),
        "push": replaces("answer", "secret", "blank"),
        "end": blocks("answer", "forbidden", "Not here."),
    }
    turns = [
        ("One.", "Go on."),
        (f"A secret.\n{CALL}", "weather is fine"),
        ("Two.", "Go on."),
        (CALL.replace("notes", "forbidden"), "Go on."),
        ("Three.", ""),
    ]
    closed, _, choices = await talked(rules, turns, tokenizer, checkpoint, tmp_path)
    assert [choice.message.content for choice in choices] == ["One.", "A blank.", "Two.", "Not here.", "Three."]
    assert [choice.finish_reason for choice in choices] == ["stop", "tool_calls", "stop", "stop", "stop"]
    calls = closed.calls
    assert [call.cause for call in calls] == ["root", "continue", "rewrite", "continue", "rewrite"]
    assert [call.rewritten for call in calls] == [False, True, False, True, False]
    assert [edit.rule for edit in calls[1].edits] == ["rules.mine.push"]
    assert closed.counts["forks"] == {"rewrite": 2}
    assert "secret" in tokenizer.decode(calls[1].sampled_ids)
    assert "secret" not in tokenizer.decode(calls[2].prompt_ids)
    untrained = {call.call_id for call in calls if call.rewritten}
    whole = grow(rollout(calls))
    assert {s.calls[0] for s in whole.segments if s.sampled and not s.trained} == untrained
    for leaf_filter in ("cause", "paper"):
        for auxiliary in ("full", "drop"):
            tree = prune(whole, leaf_filter, auxiliary)
            trained = {segment.calls[0] for segment in tree.segments if segment.trained}
            assert trained
            assert not trained & untrained


def rollout(calls: tuple[Call, ...]) -> Rollout:
    return Rollout(
        id="r", task_id="t", harness="h", step=0, number=0, seed=0, outcome=Outcome.COMPLETED, reward=1.0, calls=calls
    )


async def test_the_first_answer_may_be_the_rewritten_one_and_what_follows_the_fork_goes_on(
    tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path
) -> None:
    rules: dict[str, Rule] = {
        "clock": replaces("system", r"15:\d+", "noon"),
        "push": replaces("answer", "secret", "blank"),
    }
    turns = [(f"A secret.\n{CALL}", "fine"), (CALL, "fine"), ("Done.", "")]
    closed, _, _ = await talked(rules, turns, tokenizer, checkpoint, tmp_path)
    assert [call.cause for call in closed.calls] == ["root", "rewrite", "continue"]
    before = closed.calls[1].prompt_ids + closed.calls[1].sampled_ids
    assert closed.calls[2].prompt_ids[: len(before)] == before
