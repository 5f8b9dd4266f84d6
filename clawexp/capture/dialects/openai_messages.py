"""The messages and tools of OpenAI's chat form -> the conversation that capture compares and renders."""

from collections.abc import Iterator, Mapping
from typing import Any

from clawexp.capture.dialects.fields import listed, string, string_or_none, unreadable
from clawexp.capture.dialects.tools import offered, parsed_arguments
from clawexp.capture.message import Message, Refused, Role, ToolCall, Tools
from clawexp.records import Edit

ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
TEXT = ("text", "input_text", "output_text")
"""Types of parts that are text, in this form and in that of responses."""


def read_messages(value: Any) -> tuple[Message, ...]:
    """Message for message: nothing is moved, merged or dropped. Raises Refused."""
    if not isinstance(value, list) or not value:
        raise Refused("invalid_request", "messages: must be a list of at least one message")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(value))


def read_tools(value: Any) -> tuple[Tools, tuple[Edit, ...]]:
    """Function tools as they are. Raises Refused."""
    return offered(_functions(listed(value, "tools")))


def read_role(value: Any, place: str) -> Role:
    """The role of a message. Raises Refused."""
    if not isinstance(value, str) or value not in ROLES:
        raise Refused("invalid_request", f"{place}: must be one of {', '.join(ROLES)}")
    return ROLES[value]


def read_text(content: Any, place: str) -> str:
    """A string, or its text parts joined as they are rendered. Raises Refused."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refused("invalid_request", f"{place}: must be a string or a list of parts")
    return "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _functions(tools: list[Any]) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            yield tool, None
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused("invalid_request", f"tools[{index}]: must be a function with a name")
        else:
            yield tool, tool


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, dict):
        raise Refused("invalid_request", f"{place}: must be an object")
    reasoning = value.get("reasoning_content") or value.get("reasoning")
    return Message(
        role=read_role(value.get("role"), f"{place}.role"),
        content=read_text(value.get("content"), f"{place}.content"),
        reasoning=string_or_none(reasoning, f"{place}.reasoning_content"),
        tool_calls=_tool_calls(value.get("tool_calls"), f"{place}.tool_calls"),
        tool_call_id=str(value.get("tool_call_id") or ""),
    )


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict):
        raise Refused("invalid_request", f"{place}: must be an object")
    if part.get("type") == "refusal":
        return string(part.get("refusal"), f"{place}.refusal")
    if part.get("type") not in TEXT:
        raise unreadable(part.get("type"), place)
    return string(part.get("text"), f"{place}.text")


def _tool_calls(value: Any, place: str) -> tuple[ToolCall, ...]:
    return tuple(_tool_call(call, f"{place}[{index}]") for index, call in enumerate(listed(value, place)))


def _tool_call(call: Any, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise Refused("invalid_request", f"{place}: must be a call of a function")
    return ToolCall(
        name=string(function.get("name"), f"{place}.function.name"),
        arguments=parsed_arguments(function.get("arguments")),
        id=str(call.get("id") or ""),
    )
