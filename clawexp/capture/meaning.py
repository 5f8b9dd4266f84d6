"""Messages -> digests that are equal when two messages mean the same to the model.

Harnesses write history back in other words: arguments respaced, ids renamed, text wrapped in a part. The
dialect has dropped bookkeeping and joined parts already; here the rest of the differences go.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from clawexp.capture.message import Message, ToolCall, Tools

EXACT = 2**53
"""JavaScript's numbers are doubles: beyond this, integers come back from a harness rounded."""
SORTED = json.JSONEncoder(sort_keys=True)
SURROGATE = re.compile("[\ud800-\udfff]")


def meaning(message: Message) -> bytes:
    """Digest of what a message says. Ids are left out, arguments are compared as JSON values."""
    assistant = message.role == "assistant"
    content = message.content.strip() if assistant else message.content
    calls = [(call.name, _plain(_value(call.arguments))) for call in message.tool_calls]
    told = SORTED.encode(calls) if calls else ""
    parts = (message.role, content, message.reasoning.strip(), told)
    sizes = ",".join(str(len(part)) for part in parts)  # so that no text can pass for another part
    return hashlib.sha256("".join((sizes, *parts)).encode("utf-8", "surrogatepass")).digest()


def answer_meanings(message: Message) -> frozenset[bytes]:
    """Digests under which an answer may come back: as it was, or without the reasoning, which some harnesses
    drop."""
    bare = Message(role=message.role, content=message.content, tool_calls=message.tool_calls)
    return frozenset({meaning(message), meaning(bare)})


def tools_meaning(tools: Tools) -> bytes:
    """Digest of the tool schemas as they are rendered: order counts, of tools and of keys."""
    return hashlib.sha256(json.dumps([dict(tool) for tool in tools]).encode()).digest()


def stringify(value: Any) -> str:
    """JSON as JavaScript's JSON.stringify writes it: what a harness echoes after parsing is then the same
    text."""
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    return SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", text)


def arguments_text(call: ToolCall) -> str:
    """A tool call's arguments as dialects send them."""
    return call.arguments if isinstance(call.arguments, str) else stringify(call.arguments)


def _value(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _plain(value: Any) -> Any:
    """Numbers as JavaScript keeps them: 1.0 is 1, 2**60 + 1 is 2**60, and 1e400 is null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
        try:
            return int(float(value))
        except OverflowError:  # infinite there, which is written so
            return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value
