"""A request's body -> its fields, each of the type that is read, or a refusal that names the place."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from clawexp.capture.message import Refused

NUMBERS = frozenset(
    (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "n",
    )
)
"""Of what shapes sampling, the fields that are numbers."""
STRUCTURE = (b",", b"[", b"{")
"""There is one of these, in a text or between values, for each value of a body but the first."""
MOST_VALUES = 2**20
"""Values take a hundred times the memory of their bytes; texts that fill a context have a tenth of these."""
CROWDED = 2**20
"""Bytes that may hold so many."""
READ_TWICE = 2**22
"""Bytes of a body that is read again where the quick way fails."""


def read_object(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """The JSON object that every dialect's body is. Raises Refused."""
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refused("invalid_request", f"The body must be sent as application/json, not as {kind!r}.")
    try:
        content = _loaded(body)
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_request", f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(content, dict):
        raise Refused("invalid_request", "The body of the request must be a JSON object.")
    return content


def _loaded(body: bytes) -> Any:
    """Raises ValueError, and RecursionError for what is nested too deeply."""
    if len(body) > CROWDED and sum(map(body.count, STRUCTURE)) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in error.msg or len(body) > READ_TWICE:
            raise
        return json.loads(body, parse_constant=_no_constant)  # half of a surrogate pair, which harnesses do send


def string(value: Any, place: str) -> str:
    """Raises Refused."""
    if not isinstance(value, str):
        raise Refused("invalid_request", f"{place}: must be a string")
    return value


def string_or_none(value: Any, place: str) -> str:
    """The string; an empty one where there is none. Raises Refused."""
    return "" if value is None else string(value, place)


def flag(value: Any, place: str) -> bool:
    """False where there is none. Raises Refused."""
    if value is not None and not isinstance(value, bool):
        raise Refused("invalid_request", f"{place}: must be true or false")
    return bool(value)


def listed(value: Any, place: str) -> list[Any]:
    """An empty list where there is none. Raises Refused."""
    if value is not None and not isinstance(value, list):
        raise Refused("invalid_request", f"{place}: must be a list")
    return value or []


def mapping(value: Any, place: str) -> Mapping[str, Any]:
    """An empty object where there is none. Raises Refused."""
    if value is not None and not isinstance(value, dict):
        raise Refused("invalid_request", f"{place}: must be an object")
    return value or {}


def token_limit(value: Any, place: str) -> int | None:
    """Tokens that an answer may take; None where nothing is asked. Raises Refused."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise Refused("invalid_request", f"{place}: must be a whole number of at least 1, not {value!r}")
    return value


def shaping(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What would shape sampling, of the fields that were sent. `names`: the dialect's name of each -> capture's.

    Raises Refused where a number is none.
    """
    found = {ours: content[theirs] for theirs, ours in names.items() if theirs in content}
    for theirs, ours in names.items():
        if ours in NUMBERS and not isinstance(content.get(theirs), int | float | None):
            raise Refused("invalid_request", f"{theirs}: must be a number")
    return found


def unreadable(kind: Any, place: str) -> Refused:
    """The refusal of an image, a document and whatever else is no text."""
    return Refused("invalid_request", f"{place}: content of type {kind!r} is not supported; this model reads text only")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
