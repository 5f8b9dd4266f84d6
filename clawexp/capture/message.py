"""What capture speaks inside: a conversation, a request for the next turn and its answer, free of any dialect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from clawexp.errors import CaptureError
from clawexp.records import Edit, ParseVerdict

RefusalKind = Literal[
    "unknown_key", "not_found", "no_websocket", "too_large", "invalid_request", "context_length", "unavailable"
]
Finish = Literal["stop", "length", "tool_calls"]
Role = Literal["system", "user", "assistant", "tool"]
Tools = tuple[Mapping[str, Any], ...]
"""Tool schemas in OpenAI's function form, as the harness sent them: the order of keys is rendered."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`ToolCall(name="read", arguments={"path": "a.txt"}, id="call3t0")`"""

    name: str
    arguments: Any
    """Parsed JSON; the text itself where a harness sends text that does not parse."""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation. `Message(role="tool", content="x = 4")`"""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What sampled ids say. A malformed or cut answer is plain content: nothing in it is executed."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    verdict: ParseVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A harness's request for the next turn."""

    messages: tuple[Message, ...]
    tools: Tools
    requested: Mapping[str, Any]
    """Every field that would shape sampling, as the harness sent it; only what it sent."""
    max_tokens: int | None
    """Tokens that the answer may take, as the harness asked; None where it did not."""
    stream: bool
    stream_usage: bool
    """Whether a stream ends with a chunk of usage."""
    freeform: frozenset[str] = frozenset()
    """Names of the tools that take text; the model gives it to them as their one argument, `input`."""
    auxiliary: bool = False
    """The request itself shows that it is a question on the side: a title, a probe, a helper's turn."""
    edits: tuple[Edit, ...] = ()
    message_edits: tuple[tuple[int, Edit], ...] = ()
    """By the place of the message, or where it would stand: noted on the first call that has it."""
    tool_edits: tuple[Edit, ...] = ()
    """Noted on the first call with these tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the harness is told."""

    id: str
    created: int
    """Seconds since the epoch."""
    message: Message
    finish: Finish
    prompt_tokens: int
    sampled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    late: bytes = b""
    """Of an error: what ends a stream that has begun, when it is too late for a status."""


class Refused(CaptureError):
    """A request that gets an error instead of an answer; the dialect gives the error its form."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind: RefusalKind = kind


class TooLong(Refused):
    """A prompt that does not fit; harnesses make room for their next one when it is said in their dialect's own
    words."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__("context_length", f"The prompt has {prompt_tokens} tokens; the context holds {context}.")
        self.prompt_tokens = prompt_tokens
        self.context = context
