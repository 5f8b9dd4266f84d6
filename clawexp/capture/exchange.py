"""One call of a rollout as its later calls see it: what was asked, by meaning, and the exact ids."""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from clawexp.capture.meaning import meaning, tools_meaning
from clawexp.capture.message import Answer, Request, Role
from clawexp.records import Cause, Edit

Kind = Literal["main", "auxiliary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A request, reduced to what requests are compared by."""

    messages: tuple[bytes, ...]
    """Digest of each message's meaning."""
    roles: tuple[Role, ...]
    tools: bytes
    has_tools: bool

    @classmethod
    def of(cls, request: Request) -> Self:
        return cls(
            messages=tuple(meaning(message) for message in request.messages),
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
    cause: Cause
    kind: Kind
    prompt: np.ndarray
    """int32 [prompt]. After the commit a view into `sequence`."""
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
        return view.messages[length] in self.answers and view.messages[:length] == self.view.messages[:length]

    def told(self, view: View) -> int:
        """How many of the request's first messages are this call's and its answer."""
        pairs = zip(self.view.messages, view.messages, strict=False)
        length = next((place for place, (own, other) in enumerate(pairs) if own != other), -1)
        if length >= 0:
            return length
        whole = min(len(self.view.messages), len(view.messages))
        return whole + (whole < len(view.messages) and view.messages[whole] in self.answers)
