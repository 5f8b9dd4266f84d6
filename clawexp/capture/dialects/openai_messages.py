"""The messages and tools of OpenAI's chat form -> the conversation that capture compares and renders."""

import json
from collections.abc import Mapping
from typing import Any

from clawexp.capture.message import Message, Refused, Role, ToolCall, Tools

ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def read_messages(value: Any) -> tuple[Message, ...]:
    """Message for message: nothing is moved, merged or dropped. Raises Refused."""
    if not isinstance(value, list) or not value:
        raise Refused("invalid_request", "messages must be a list of at least one message.")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(value))


def read_tools(value: Any) -> Tools:
    """Function tools as they are. Raises Refused."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Refused("invalid_request", "tools must be a list.")
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused("invalid_request", f"tools[{index}] is no function with a name; other tools are not offered.")
    return tuple(value)


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str) or value["role"] not in ROLES:
        raise Refused("invalid_request", f"{place}.role must be one of {', '.join(ROLES)}.")
    reasoning = value.get("reasoning_content") or value.get("reasoning")
    return Message(
        role=ROLES[value["role"]],
        content=_text(value.get("content"), f"{place}.content"),
        reasoning=reasoning if isinstance(reasoning, str) else "",
        tool_calls=_tool_calls(value.get("tool_calls"), f"{place}.tool_calls"),
        tool_call_id=str(value.get("tool_call_id") or ""),
    )


def _text(content: Any, place: str) -> str:
    """A string, or its text parts joined as they are rendered."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused("invalid_request", f"{place} must be a string or a list of parts.")
    return "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise Refused("invalid_request", f"{place} is no text; the model reads text only.")
    return text


def _tool_calls(value: Any, place: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Refused("invalid_request", f"{place} must be a list.")
    return tuple(_tool_call(call, f"{place}[{index}]") for index, call in enumerate(value))


def _tool_call(call: Any, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused("invalid_request", f"{place} is no call of a function with a name.")
    return ToolCall(
        name=function["name"], arguments=_arguments(function.get("arguments")), id=str(call.get("id") or "")
    )


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        return json.loads(value or "{}")
    except (ValueError, RecursionError):  # a broken call is kept as the text that it is
        return value
