"""One call of a rollout as its later calls see it: what was asked, by meaning, and the exact ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from clawexp.capture.history import Turn, View
from clawexp.capture.message import Answer
from clawexp.records import Cause, Edit

Kind = Literal["main", "auxiliary"]
NO_IDS = np.empty(0, dtype=np.int32)


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """In flight while it has no answer; committed, and a base for later calls, once it has."""

    position: int
    end: Turn
    """The last message of its request."""
    thinking: int
    """Of its request; see `View`."""
    thoughts: Mapping[int, bytes]
    """Digests of the reasoning that its request tells of messages that its base has not, by place."""
    tools: bytes
    has_tools: bool
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
    answered: bytes = b""
    """Meaning of the answer."""
    thought: bytes = b""
    """Digest of its reasoning; empty where there is none."""
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
    def length(self) -> int:
        """Messages of its request."""
        return self.end.place + 1

    @property
    def said(self) -> str:
        """The text of the answer."""
        return self.answer.message.content.strip() if self.answer else ""

    @property
    def unfinished(self) -> bool:
        """No answer yet, or one that waits for the results of tools."""
        return self.answer is None or bool(self.answer.message.tool_calls)

    def asks(self, view: View) -> bool:
        """Whether a request has the same messages and tools."""
        return self.end is view.end and self.tools == view.tools and self.thinking == view.thinking

    def begins(self, view: View, *, dropped: bool = False, any_tools: bool = False) -> bool:
        """Whether this call's messages, `dropped`: but for the last, and its answer are the first of the request's.

        Reasoning may be missing in the request, but none may be there that was not told or said so.
        """
        length = self.length - dropped
        if not self.answered or len(view.turns) <= length or not (any_tools or view.tools == self.tools):
            return False
        answer = view.turns[length]
        if answer.meaning != self.answered or answer.above is not (self.end.above if dropped else self.end):
            return False
        return not view.thoughts or self._thinks(view, length)

    def _thinks(self, view: View, length: int) -> bool:
        """Whether the request's reasoning, through place `length`, is this call's and that of those that it goes on
        from."""
        known = {length: self.thought}
        call: Exchange | None = self
        while call is not None:
            known |= call.thoughts
            if call.base is not None:
                known[call.base.length] = call.base.thought
            call = call.base
        return all(known.get(place, b"") == told for place, told in view.thoughts.items() if place <= length)

    def told(self, view: View) -> int:
        """How many of the request's first messages are this call's and its answer."""
        turn: Turn | None = self.end
        while turn is not None and (turn.place >= len(view.turns) or view.turns[turn.place] is not turn):
            turn = turn.above
        length = 0 if turn is None else turn.place + 1
        answered = length == self.length and length < len(view.turns) and view.turns[length].meaning == self.answered
        return length + answered
