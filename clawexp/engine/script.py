"""A prompt -> what a model with a script says next: the next call of a list, or of the solution of the prompt's task.

Which task a prompt is about, how far its solution has come and which tools there are is all read from the prompt's own
text, as a model would: a harness may rename tools, start again after a compaction, or ask side questions, and nothing
is kept from one prompt to the next. A call that was wrong on purpose is no part of the solution. The tasks themselves,
instruction and solution, are told beforehand; of those whose instruction stands in the prompt, the one with the longest
is meant. Prompts are those of Qwen3's chat template.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from clawexp.engine.flaws import Flaw
from clawexp.engine.tools import NotOffered, Schema, ToolCall, offered_call

log = logging.getLogger(__name__)

CLOSING = "Done."
FINISH = re.compile(r"finish your work by issuing the following command: `([^`]+)`")
"""How a prompt says that a command ends the work, where a plain answer does not: mini-swe-agent's words."""
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?=<\|im_end\|>|<\|im_start\|>|\Z)", re.DOTALL)
WRONG = "wrong-on-purpose"
"""Stands in the arguments of a wrong call."""
MALFORMED = '<tool_call>\n{"name": "read", "arguments": {"path": \n</tool_call>'
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)


class Unplayable(Exception):
    """There is no next thing to say; the text says why and what to do."""


class Script:
    """Says the next call of `calls`, or where that is empty, of the solution of the task that a prompt is about."""

    def __init__(self, checkpoint: Path, calls: Sequence[ToolCall]) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self._calls = tuple(calls)
        self._solutions: dict[str, Sequence[ToolCall]] = {}

    def expect(self, tasks: Sequence[tuple[str, Sequence[ToolCall]]]) -> None:
        """Learn instructions and solutions; of one instruction the newest counts. Raises Unplayable.

        Two tasks that are told together and differ in their solution alone cannot be told apart.
        """
        fresh: dict[str, Sequence[ToolCall]] = {}
        for instruction, solution in tasks:
            words = self._plain(instruction)
            if fresh.setdefault(words, solution) != solution:
                raise Unplayable(f"two tasks with different solutions have the same instruction, {instruction!r:.200}")
        self._solutions |= fresh

    def answer(self, prompt: Sequence[int], stop_ids: Sequence[int], flaw: Flaw | None = None) -> list[int]:
        """Ids of the whole answer, its stop id too unless it is cut. Raises Unplayable."""
        if not stop_ids:
            raise Unplayable("a scripted answer needs a stop id to end with; send stop_token_ids")
        if flaw == "empty":
            return [stop_ids[0]]
        told = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        text = MALFORMED if flaw == "malformed" else self._next(told, wrong=flaw == "wrong")
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids[: (len(ids) + 1) // 2] if flaw == "cut" else [*ids, stop_ids[0]]

    def _next(self, prompt: str, *, wrong: bool) -> str:
        turns = TURN.findall(prompt)
        tools = offered_tools(prompt)
        if not tools:  # a title, a summary: whatever it is, it does not work on the task
            return CLOSING
        begin, calls = self._part(turns)
        finish = FINISH.search(prompt)
        if finish:
            calls = (*calls, ("exec", {"command": finish[1]}))
        done = sum(role == "assistant" and _plays(text) for role, text in turns[begin:])
        if done >= len(calls):
            return CLOSING
        try:
            right = offered_call(calls[done], tools)
            return tool_call_text(*(_wrong_call(right, tools) if wrong else right))
        except NotOffered as error:
            raise Unplayable(f"{error}; choose a harness, or tools of this one, that can do it") from error

    def _part(self, turns: Sequence[tuple[str, str]]) -> tuple[int, Sequence[ToolCall]]:
        """The turn that sets the task, and what is to be called from there on."""
        said = [(place, " ".join(text.split())) for place, (role, text) in enumerate(turns) if role == "user"]
        if self._calls:
            return (said[0][0] if said else 0), self._calls
        for instruction in sorted(self._solutions, key=len, reverse=True):
            place = next((place for place, text in said if instruction in text), None)
            if place is not None:
                return place, self._solutions[instruction]
        log.warning("a prompt is about no task that was told; it ends with %r", said[-1][1][-200:] if said else "")
        return 0, ()

    def _plain(self, text: str) -> str:
        """As it reads in a decoded prompt, spaces aside."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return " ".join(self._tokenizer.decode(ids, skip_special_tokens=False).split())


def _plays(turn: str) -> bool:
    """Whether a turn of the model's holds a call of the solution: neither a broken one nor one that was wrong."""
    return any(WRONG not in call and _is_json(call) for call in CALL.findall(turn))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _wrong_call(right: ToolCall, tools: Sequence[Schema]) -> ToolCall:
    """A look at a file that is not there; where nothing can look, the right tool with arguments that are no use."""
    try:
        return offered_call(("read", {"path": WRONG}), tools)
    except NotOffered:
        name, arguments = right
        return name, {each: WRONG if isinstance(value, str) else value for each, value in arguments.items()}


def offered_tools(prompt: str) -> list[Schema]:
    """The function tools that a prompt offers."""
    block = TOOLS.search(prompt)
    return [json.loads(line)["function"] for line in block[1].splitlines()] if block else []


def tool_call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """One tool call as Qwen3's template writes it."""
    call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
