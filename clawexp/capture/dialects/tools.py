"""The tools of a request -> those that the prompt offers; and a tool call's arguments as they are compared."""

from collections.abc import Iterable, Mapping
from typing import Any

from clawexp.capture.message import Refused, Tools
from clawexp.quick_json import loads
from clawexp.records import Edit


def offered(tools: Iterable[tuple[Any, Mapping[str, Any] | None]]) -> tuple[Tools, tuple[Edit, ...]]:
    """Each tool as it was sent, with the function that it stands for; None where the API's own servers would run it.

    Nobody runs those here: beside others they are left out, and noted. A request that lives on them alone (a search,
    say) would get an invented answer. Raises Refused for it.
    """
    functions, edits = [], []
    for sent, function in tools:
        if function is None:
            edits.append(Edit(rule="tools.server", before=sent, after=None))
        else:
            functions.append(function)
    if edits and not functions:
        raise Refused(
            "invalid_request", "tools: only functions are offered; nobody here runs the tools of this request"
        )
    return tuple(functions), tuple(edits)


def function(name: Any, description: Any, parameters: Any, place: str) -> dict[str, Any]:
    """A tool in OpenAI's function form. Raises Refused."""
    if not isinstance(name, str) or not name:
        raise Refused("invalid_request", f"{place}: a tool must have a name")
    if not isinstance(parameters, dict | None) or not isinstance(description, str | None):
        raise Refused("invalid_request", f"{place}: a description must be a string, a schema an object")
    described = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters or {}}}


def parsed_arguments(value: Any) -> Any:
    """The JSON of a call's arguments; a broken one is kept as the text that it is."""
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        return loads(value or "{}")
    except (ValueError, RecursionError):
        return value
