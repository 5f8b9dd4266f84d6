"""Messages -> digests that are equal when two messages mean the same to the model.

Harnesses write history back in other words: arguments respaced, ids renamed, text wrapped in a part. The
dialect has dropped bookkeeping and joined parts already; here the rest of the differences go.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import orjson

from clawexp.capture.message import Message, ToolCall, Tools
from clawexp.quick_json import dumps, loads

EXACT = 2**53
"""JavaScript's numbers are doubles: beyond this, integers come back from a harness rounded."""
SURROGATE = re.compile("[\ud800-\udfff]")


def meaning(message: Message) -> bytes:
    """Digest of what a message says but for its reasoning. Ids are left out, arguments are compared as JSON values."""
    assistant = message.role == "assistant"
    content = message.content.strip() if assistant else message.content
    calls = [(call.name, _value(call.arguments)) for call in message.tool_calls]
    texts = (message.role, content)
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    parts.append(_text(calls, sort=True).encode() if calls else b"")
    sizes = b"%d,%d," % tuple(map(len, parts[1:]))  # so that no text can pass for another part
    return hashlib.sha256(sizes + b"".join(parts)).digest()


def thought(message: Message) -> bytes:
    """Digest of a message's reasoning; empty where there is none."""
    reasoning = message.reasoning.strip()
    return hashlib.sha256(reasoning.encode("utf-8", "surrogatepass")).digest() if reasoning else b""


def digests(message: Message) -> tuple[bytes, bytes]:
    """Both of an answer."""
    return meaning(message), thought(message)


def tools_meaning(tools: Tools) -> bytes:
    """Digest of the tool schemas as they are rendered: order counts, of tools and of keys."""
    return hashlib.sha256(dumps([dict(tool) for tool in tools])).digest()


def stringify(value: Any) -> str:
    """JSON as JavaScript's JSON.stringify writes it: what a harness echoes after parsing is then the same text."""
    return _text(value)


def arguments_text(call: ToolCall) -> str:
    """A tool call's arguments as dialects send them."""
    return call.arguments if isinstance(call.arguments, str) else stringify(call.arguments)


def _value(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _text(value: Any, *, sort: bool = False) -> str:
    """orjson writes fractions as JavaScript does, but neither half of a surrogate pair nor more than 64 bits."""
    try:
        plain = _plain(value, orjson.Fragment)
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS if sort else None).decode()
    except orjson.JSONEncodeError:
        text = json.dumps(_plain(value, json.loads), ensure_ascii=False, sort_keys=sort, separators=(",", ":"))
        return SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", text)


def _plain(value: Any, number: Callable[[str], Any]) -> Any:
    """Numbers as JavaScript keeps them: 1.0 is 1, 2**60 + 1 is 2**60, 10**21 is 1e+21, and 1e400 is null.

    `number` takes those that orjson writes in another way, as they are written there.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(item, number) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, number) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
        try:
            value = float(value)
        except OverflowError:  # infinite there, which is written so
            return None
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    if not value.is_integer() or abs(value) >= 1e21:
        return number(f"{_digits(value):f}") if 1e-6 <= abs(value) < 1e-5 else value
    whole = int(_digits(value))
    return whole if abs(whole) < 2**63 else number(str(whole))


def _digits(value: float) -> Decimal:
    """The fewest that are this double, and zeros."""
    return Decimal(repr(value))
