"""The messages and tools of Anthropic's form -> the conversation that capture compares and renders.

A message is a list of blocks, or a string that stands for one. Bookkeeping is dropped here (`cache_control`, ids,
signatures, billing lines); whatever the model would read keeps its place.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from clawexp.capture.dialects.fields import listed, mapping, string, unreadable
from clawexp.capture.dialects.tools import function, offered
from clawexp.capture.message import Message, Refused, Role, ToolCall, Tools
from clawexp.records import Edit

ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
BILLING = "x-anthropic-billing-header:"
"""Begins a system block of Claude Code that changes with the conversation and says nothing to the model."""

Block = Mapping[str, Any]
Definitions = Mapping[str, Mapping[str, Any]]
"""Tools by name, in OpenAI's function form."""


def read_system(value: Any) -> tuple[tuple[Message, ...], tuple[Edit, ...]]:
    """The system prompt before the first message, without what is no part of it. Raises Refused."""
    if value is None:
        return (), ()
    texts = [_text(block, f"system.{index}") for index, block in enumerate(_blocks(value, "system"))]
    dropped = tuple(Edit(rule="system.billing", before=text, after=None) for text in texts if text.startswith(BILLING))
    kept = "".join(text for text in texts if not text.startswith(BILLING))
    return (Message(role="system", content=kept),) if kept else (), dropped


def read_messages(value: Any, tools: Any) -> tuple[Message, ...]:
    """Block after block: nothing is moved. Results of tools become messages of their own. Raises Refused."""
    if not isinstance(value, list) or not value:
        raise Refused("invalid_request", "messages: at least one message is required")
    functions = [each for _, each in _functions(listed(tools, "tools")) if each is not None]
    definitions = {each["function"]["name"]: each for each in functions}
    turns = [turn for index, message in enumerate(value) for turn in _turns(message, f"messages.{index}", definitions)]
    if turns[-1].role == "assistant":
        raise Refused(
            "invalid_request",
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        )
    return tuple(turns)


def read_tools(value: Any) -> tuple[Tools, tuple[Edit, ...]]:
    """The tools that the prompt offers. A deferred one is not in it until a result refers to it. Raises Refused."""
    tools = listed(value, "tools")
    return offered(each for each in _functions(tools) if not each[0].get("defer_loading"))


def _functions(tools: Sequence[Any]) -> Iterator[tuple[Block, dict[str, Any] | None]]:
    """All tools in OpenAI's function form, keys in the order in which it has them."""
    for index, tool in enumerate(tools):
        sent = mapping(tool, f"tools.{index}")
        if sent.get("type", "custom") != "custom":
            yield sent, None
        else:
            schema = mapping(sent.get("input_schema"), f"tools.{index}.input_schema")
            yield sent, function(sent.get("name"), sent.get("description"), schema, f"tools.{index}")


def _turns(message: Any, place: str, definitions: Definitions) -> Iterator[Message]:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise Refused("invalid_request", f"{place}.role: must be one of {', '.join(ROLES)}")
    blocks = _blocks(message.get("content"), f"{place}.content")
    if role == "assistant":
        yield _assistant(blocks, place)
        return
    placed = [(f"{place}.content.{index}", block) for index, block in enumerate(blocks)]
    for is_result, group in groupby(placed, key=lambda each: each[1].get("type") == "tool_result"):
        if is_result:
            yield from (_result(block, at, definitions) for at, block in group)
        else:
            yield Message(role=ROLES[role], content="".join(_text(block, at) for at, block in group))
    if not blocks:
        yield Message(role=ROLES[role])


def _assistant(blocks: Sequence[Block], place: str) -> Message:
    content, reasoning, calls = "", "", []
    for index, block in enumerate(blocks):
        at = f"{place}.content.{index}"
        match block.get("type"):
            case "thinking":
                reasoning += string(block.get("thinking"), f"{at}.thinking")
            case "redacted_thinking":  # nobody can read it
                pass
            case "tool_use":
                calls.append(_tool_call(block, at))
            case _:
                content += _text(block, at)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def _tool_call(block: Block, place: str) -> ToolCall:
    if not isinstance(block.get("input"), dict):
        raise Refused("invalid_request", f"{place}.input: must be an object")
    return ToolCall(
        name=string(block.get("name"), f"{place}.name"), arguments=block["input"], id=str(block.get("id") or "")
    )


def _result(block: Block, place: str, definitions: Definitions) -> Message:
    parts = _blocks(block.get("content") or "", f"{place}.content")
    texts = [_part(part, f"{place}.content.{index}", definitions) for index, part in enumerate(parts)]
    return Message(role="tool", content="".join(texts), tool_call_id=str(block.get("tool_use_id") or ""))


def _part(block: Block, place: str, definitions: Definitions) -> str:
    """What a part of a tool's result says. A reference to a deferred tool brings its schema into the prompt."""
    if block.get("type") != "tool_reference":
        return _text(block, place)
    name = string(block.get("tool_name"), f"{place}.tool_name")
    return json.dumps(definitions.get(name, name), ensure_ascii=False) + "\n"


def _text(block: Block, place: str) -> str:
    if block.get("type") != "text":
        raise unreadable(block.get("type"), place)
    return string(block.get("text"), f"{place}.text")


def _blocks(value: Any, place: str) -> list[Block]:
    """A list of blocks; of one, where a string stands for it."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list) or not all(isinstance(block, dict) for block in value):
        raise Refused("invalid_request", f"{place}: must be a string or a list of blocks")
    return value
