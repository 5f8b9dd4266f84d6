"""Sampled text in the Hermes form -> content, reasoning and tool calls; and the one verdict on any answer.

<think>why</think>text<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from clawexp.capture.message import Parsed, ToolCall

BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)

DEEPEST = 128
"""Levels of a tool call's arguments; readers and writers of JSON fail at a few hundred."""


def parse_text(text: str, ended: bool) -> Parsed:
    """Parse the text of one answer, without its stop token. `ended`: a stop token ended it."""
    thought = THOUGHT.match(text)
    reasoning, rest = (thought[1].strip(), text[thought.end() :]) if thought else ("", text)
    attempts = [_attempt(block[1]) if block[2] else None for block in BLOCK.finditer(rest)]
    content = rest.partition("<tool_call>")[0].strip()
    return judge(text, ended, Parsed(content=content, reasoning=reasoning, tool_calls=(), verdict="text"), attempts)


def judge(text: str, ended: bool, parsed: Parsed, attempts: Sequence[ToolCall | None]) -> Parsed:
    """The verdict on an answer of `text`, of which a parser found `parsed` and tool calls `attempts` (None:
    broken).

    A broken tool call makes the whole answer plain text, for harnesses repair or crash on half of one; and of
    an answer that was cut, nothing is executed.
    """
    good = [attempt for attempt in attempts if attempt is not None and _sound(attempt)]
    whole = Parsed(content=text.strip(), reasoning="", tool_calls=(), verdict="malformed")
    if not ended:
        cut = whole if attempts else parsed
        return Parsed(content=cut.content, reasoning=cut.reasoning, tool_calls=(), verdict="cut")
    if len(good) < len(attempts):
        return whole
    verdict = "tool_calls" if good else "text"
    return Parsed(content=parsed.content, reasoning=parsed.reasoning, tool_calls=tuple(good), verdict=verdict)


def _attempt(block: str) -> ToolCall | None:
    try:
        value = json.loads(block)
    except (ValueError, RecursionError):  # the model may nest without end, or write a number of 5000 digits
        return None
    if not isinstance(value, dict):
        return None
    return ToolCall(name=value.get("name", ""), arguments=value.get("arguments", {}))


def _shallow(value: Any) -> bool:
    """Whether it nests less than `DEEPEST` deep. No recursion: how deep that goes depends on who calls."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return True
    return False


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _sound(call: ToolCall) -> bool:
    """Whether a harness that reads JSON as JavaScript does can take it."""
    if not isinstance(call.name, str) or not call.name or not isinstance(call.arguments, dict):
        return False
    if not _shallow(call.arguments):
        return False
    try:
        # There every number is a float, and one of 309 digits infinite.
        json.dumps(json.loads(json.dumps(call.arguments, allow_nan=False), parse_int=float), allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True
