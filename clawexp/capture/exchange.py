"""One call of a rollout as its later calls see it: what was asked, by meaning, and the exact ids."""

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, Self

import numpy as np

from clawexp.capture.meaning import meaning, tools_meaning
from clawexp.capture.message import Answer, Request, Role
from clawexp.records import Cause, Edit

Kind = Literal["main", "auxiliary"]
NO_IDS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A request, reduced to what requests are compared by."""

    messages: tuple[bytes, ...]
    """Digest of each message's meaning."""
    beginnings: tuple[bytes, ...]
    """Digest of the first 1, 2, ... messages: equal beginnings are found without a look at each."""
    roles: tuple[Role, ...]
    tools: bytes
    has_tools: bool

    @classmethod
    def of(cls, request: Request) -> Self:
        messages = tuple(meaning(message) for message in request.messages)
        return cls(
            messages=messages,
            beginnings=tuple(accumulate(messages, _chained)),
            roles=tuple(message.role for message in request.messages),
            tools=tools_meaning(request.tools),
            has_tools=bool(request.tools),
        )

    @property
    def system(self) -> bytes:
        """Digest of the system prompt; empty where there is none."""
        return self.messages[0] if self.roles[0] == "system" else b""


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """In flight while it has no answer; committed, and a base for later calls, once it has."""

    position: int
    view: View
    body: bytes
    """Digest of the request's bytes."""
    base: "Exchange | None"
    """The call that the request continues by what its messages mean."""
    cause: Cause
    kind: Kind
    prompt: np.ndarray = field(default_factory=lambda: NO_IDS)
    """int32 [prompt]; empty until it is spelt. After the call a view into `sequence`."""
    parent: "Exchange | None" = None
    """The call that shares the longest beginning with this one's prompt, to the token."""
    shared: int = 0
    """So many ids."""
    left: int = 0
    """Where prompt and answer together leave the parent's ids."""
    children: "list[Exchange]" = field(default_factory=list)
    call_id: str = ""
    answer: Answer | None = None
    answers: frozenset[bytes] = frozenset()
    """Digests under which the answer may come back."""
    sequence: np.ndarray | None = None
    """int32 [prompt + sampled]. Where another call continues it, a view into that one's: n calls cost
    O(tokens)."""
    edits: tuple[Edit, ...] = ()
    """Made to what no call before it had."""
    rewritten: bool = False
    """Its answer is not what was sampled."""
    delivered: bool = True
    """False once the client is known to have left before its answer."""
    continued: bool = False
    """A later call was built on its answer."""

    @property
    def said(self) -> str:
        """The text of the answer."""
        return self.answer.message.content.strip() if self.answer else ""

    @property
    def unfinished(self) -> bool:
        """No answer yet, or one that waits for the results of tools."""
        return self.answer is None or bool(self.answer.message.tool_calls)

    def begins(self, view: View, *, dropped: int = 0, any_tools: bool = False) -> bool:
        """Whether this call's messages, but for the last `dropped`, and its answer are the first of the
        request's."""
        length = len(self.view.messages) - dropped
        if not self.answers or len(view.messages) <= length or not (any_tools or view.tools == self.view.tools):
            return False
        if view.messages[length] not in self.answers:
            return False
        return not length or view.beginnings[length - 1] == self.view.beginnings[length - 1]

    def told(self, view: View) -> int:
        """How many of the request's first messages are this call's and its answer."""
        length = min(len(self.view.messages), len(view.messages))
        if self.view.beginnings[length - 1] != view.beginnings[length - 1]:
            return bisect_left(range(length), True, key=lambda n: self.view.beginnings[n] != view.beginnings[n])
        return length + (length < len(view.messages) and view.messages[length] in self.answers)


def _chained(before: bytes, message: bytes) -> bytes:
    return hashlib.sha256(before + message).digest()
