"""The contents and tools of Gemini's form -> the conversation that capture compares and renders.

Bookkeeping is dropped (ids, thought signatures); whatever the model would read keeps its place. Fields may be named
`functionCall` or `function_call`, as the API allows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from clawexp.capture.dialects.fields import flag, listed, mapping, string, unreadable
from clawexp.capture.dialects.tools import function, offered
from clawexp.capture.dialects.turns import joined
from clawexp.capture.meaning import stringify
from clawexp.capture.message import Message, Refused, ToolCall, Tools
from clawexp.records import Edit

TYPES = frozenset(("OBJECT", "ARRAY", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "NULL"))
"""Of the older schema form, which names them in capitals."""
UNREAD = ("inlineData", "fileData", "executableCode", "codeExecutionResult")
UNDERSCORE = re.compile("_([a-z])")

Part = Mapping[str, Any]


def camel(value: Any, place: str) -> Mapping[str, Any]:
    """An object with its fields named as in JSON. Raises Refused."""
    fields = mapping(value, place)
    return {UNDERSCORE.sub(lambda match: match[1].upper(), name): field for name, field in fields.items()}


def read_contents(system: Any, value: Any) -> tuple[Message, ...]:
    """Part after part: nothing is moved. Results of functions become messages of their own. Raises Refused."""
    contents = enumerate(listed(value, "contents"))
    # Google's own chats keep a streamed answer as one content per event.
    turns = joined(turn for index, content in contents for turn in _turns(content, f"contents[{index}]"))
    if not turns:
        raise Refused("invalid_request", "contents: at least one content is required")
    text = "" if system is None else _texts(_parts(system, "systemInstruction"), "systemInstruction")
    return (*([Message(role="system", content=text)] if text else []), *turns)


def read_tools(value: Any) -> tuple[Tools, tuple[Edit, ...]]:
    """Functions in OpenAI's form, whichever way their schemas are written. Raises Refused."""
    return offered(
        each
        for index, tool in enumerate(listed(value, "tools"))
        for each in _functions(camel(tool, f"tools[{index}]"), f"tools[{index}]")
    )


def _functions(tool: Mapping[str, Any], place: str) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    for kind, value in tool.items():
        if kind != "functionDeclarations":
            yield {kind: value}, None
            continue
        for index, declared in enumerate(listed(value, f"{place}.functionDeclarations")):
            at = f"{place}.functionDeclarations[{index}]"
            declaration = camel(declared, at)
            schema = declaration.get("parametersJsonSchema")
            parameters = _json_schema(declaration.get("parameters")) if schema is None else schema
            yield declared, function(declaration.get("name"), declaration.get("description"), parameters, at)


def _json_schema(schema: Any) -> Any:
    """The older form of a schema in the form that models know: types in small letters."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) and value in TYPES else _json_schema(value)
        for name, value in schema.items()
    }


def _turns(content: Any, place: str) -> Iterator[Message]:
    role = mapping(content, place).get("role", "user")
    parts = [(f"{place}.parts[{i}]", part) for i, part in enumerate(_parts(content, place))]
    if role == "model":
        yield _model(parts)
        return
    if role not in ("user", "function"):
        raise Refused("invalid_request", f"{place}.role: please use a valid role: user, model")
    for is_result, group in groupby(parts, key=lambda each: "functionResponse" in each[1]):
        if is_result:
            yield from (_result(part, at) for at, part in group)
        else:
            yield Message(role="user", content="".join(_text(part, at) for at, part in group))


def _model(parts: Sequence[tuple[str, Part]]) -> Message:
    content, reasoning, calls = "", "", []
    for place, part in parts:
        if "functionCall" in part:
            call = camel(part["functionCall"], f"{place}.functionCall")
            name, arguments = string(call.get("name"), f"{place}.name"), mapping(call.get("args"), f"{place}.args")
            calls.append(ToolCall(name=name, arguments=arguments, id=str(call.get("id") or "")))
        elif flag(part.get("thought"), f"{place}.thought"):
            reasoning += _text(part, place)
        else:
            content += _text(part, place)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def _result(part: Part, place: str) -> Message:
    """What a function gave. The text alone where it is named as the API asks, else the whole of it as JSON."""
    result = camel(part["functionResponse"], f"{place}.functionResponse")
    response = mapping(result.get("response"), f"{place}.response")
    output = response.get("output")
    alone = list(response) == ["output"] and isinstance(output, str)
    return Message(
        role="tool",
        content=str(output) if alone else stringify(response),
        tool_call_id=str(result.get("id") or ""),
    )


def _texts(parts: Sequence[Part], place: str) -> str:
    return "".join(_text(part, f"{place}.parts[{index}]") for index, part in enumerate(parts))


def _text(part: Part, place: str) -> str:
    kind = next((name for name in UNREAD if name in part), None)
    if kind is not None:
        raise unreadable(kind, place)
    # A part may hold a thought's signature and nothing else.
    return string(part.get("text", "" if "thoughtSignature" in part else None), f"{place}.text")


def _parts(content: Any, place: str) -> list[Part]:
    parts = listed(mapping(content, place).get("parts"), f"{place}.parts")
    return [camel(part, f"{place}.parts[{index}]") for index, part in enumerate(parts)]
