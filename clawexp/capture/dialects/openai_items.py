"""The items and tools of OpenAI's responses form -> the conversation that capture compares and renders.

A turn of the model is several items there: its reasoning, its message, its calls. Side by side they are one message
here, and where the order starts over, a new one. Bookkeeping is dropped (ids, status, encrypted reasoning).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from clawexp.capture.dialects.fields import listed, mapping, string, string_or_none, unreadable
from clawexp.capture.dialects.openai_messages import read_role, read_text
from clawexp.capture.dialects.tools import function, offered, parsed_arguments
from clawexp.capture.dialects.turns import joined
from clawexp.capture.message import Message, Refused, ToolCall, Tools
from clawexp.records import Edit

NAMESPACE = "."
"""Between the name of a group of tools and that of a tool in it; neither may contain it."""
FREEFORM = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""How a tool that takes text is offered to a model that writes JSON."""


def read_input(instructions: Any, value: Any) -> tuple[Message, ...]:
    """Item after item, nothing is moved. Raises Refused."""
    system = string_or_none(instructions, "instructions")
    first = [Message(role="system", content=system)] if system else []
    items = [{"role": "user", "content": value}] if isinstance(value, str) else listed(value, "input")
    turns = joined(_piece(mapping(item, f"input[{i}]"), f"input[{i}]") for i, item in enumerate(items))
    if not turns:
        raise Refused("invalid_request", "input: must be a text or a list of at least one item")
    return (*first, *turns)


def read_tools(value: Any) -> tuple[Tools, tuple[Edit, ...]]:
    """Functions, also those in namespaces, and tools that take text. Raises Refused."""
    return offered(
        each
        for index, tool in enumerate(listed(value, "tools"))
        for each in _functions(mapping(tool, f"tools[{index}]"), "", f"tools[{index}]")
    )


def read_freeform(value: Any) -> frozenset[str]:
    """Names of the tools that take text. Raises Refused."""
    tools = [mapping(tool, "tools") for tool in listed(value, "tools")]
    return frozenset(string(tool.get("name"), "tools") for tool in tools if tool.get("type") == "custom")


def _functions(tool: Mapping[str, Any], group: str, place: str) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    name, description = tool.get("name"), tool.get("description")
    match tool.get("type"):
        case "function":
            full = f"{group}{NAMESPACE}{name}" if group and name else name
            yield tool, function(full, description, tool.get("parameters"), place)
        case "custom":
            yield tool, function(name, description, FREEFORM, place)
        case "namespace":
            group = string(name, f"{place}.name")
            for index, inner in enumerate(listed(tool.get("tools"), f"{place}.tools")):
                at = f"{place}.tools[{index}]"
                yield from _functions(mapping(inner, at), group, at)
        case kind:
            if not isinstance(kind, str):
                raise Refused("invalid_request", f"{place}.type: must be a string")
            yield tool, None


def _piece(item: Mapping[str, Any], place: str) -> Message:
    match item.get("type", "message"):
        case "message":
            content = read_text(item.get("content"), f"{place}.content")
            return Message(role=read_role(item.get("role"), f"{place}.role"), content=content)
        case "reasoning":
            return Message(role="assistant", reasoning=_reasoning(item, place))
        case "function_call":
            name = string(item.get("name"), f"{place}.name")
            group = string_or_none(item.get("namespace"), f"{place}.namespace")
            full = f"{group}{NAMESPACE}{name}" if group else name
            return _call(item, full, parsed_arguments(item.get("arguments")))
        case "custom_tool_call":
            text = string(item.get("input"), f"{place}.input")
            return _call(item, string(item.get("name"), f"{place}.name"), {"input": text})
        case "function_call_output" | "custom_tool_call_output":
            content = read_text(item.get("output"), f"{place}.output")
            return Message(role="tool", content=content, tool_call_id=str(item.get("call_id") or ""))
        case kind:
            raise unreadable(kind, place)


def _call(item: Mapping[str, Any], name: str, arguments: Any) -> Message:
    call = ToolCall(name=name, arguments=arguments, id=str(item.get("call_id") or ""))
    return Message(role="assistant", tool_calls=(call,))


def _reasoning(item: Mapping[str, Any], place: str) -> str:
    """The reasoning itself where it is there, else its summary."""
    parts = listed(item.get("content"), f"{place}.content") or listed(item.get("summary"), f"{place}.summary")
    return "".join(string(mapping(part, place).get("text"), f"{place}.text") for part in parts)
