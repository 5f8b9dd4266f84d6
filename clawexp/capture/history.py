"""The messages of a rollout's requests, each kept once, below those that came before it.

A request of a long conversation repeats all of it. As a path through a tree it costs what is new, and two requests
begin alike where their paths are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clawexp.capture.meaning import meaning, thought, tools_meaning
from clawexp.capture.message import Request, Role

if TYPE_CHECKING:
    from clawexp.capture.exchange import Exchange


@dataclass(slots=True, eq=False)
class Turn:
    """One message in its place. Reasoning is no part of it: some harnesses drop that, at once or later."""

    meaning: bytes
    role: Role
    above: "Turn | None"
    place: int
    """Number of messages before it."""
    below: "dict[bytes, Turn]" = field(default_factory=dict)
    asked: "list[Exchange]" = field(default_factory=list)
    """Calls whose request ends here, in order of arrival."""

    @property
    def first(self) -> "Turn":
        turn = self
        while turn.above is not None:
            turn = turn.above
        return turn

    @property
    def system(self) -> bytes:
        """Meaning of the system prompt; empty where there is none."""
        first = self.first
        return first.meaning if first.role == "system" else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A request, reduced to what requests are compared by."""

    turns: tuple[Turn, ...]
    thoughts: Mapping[int, bytes]
    """Digests of the reasoning that it tells, by place."""
    tools: bytes
    has_tools: bool

    @property
    def end(self) -> Turn:
        return self.turns[-1]

    @property
    def thinking(self) -> int:
        """Equal for requests with the same reasoning in the same places."""
        return hash(tuple(self.thoughts.items()))


class History:
    """All messages of a rollout."""

    def __init__(self) -> None:
        self._first: dict[bytes, Turn] = {}

    def view(self, request: Request, *, keep: bool = True) -> View:
        """A request among those before it; its messages are kept from now on, or not, as of one that is no call."""
        digests = [meaning(message) for message in request.messages]  # what cannot be read leaves nothing behind
        turns: list[Turn] = []
        thoughts: dict[int, bytes] = {}
        above, level = None, self._first
        for place, (message, digest) in enumerate(zip(request.messages, digests, strict=True)):
            turn = level.get(digest)
            if turn is None:
                turn = Turn(digest, message.role, above, place)
                if keep:
                    level[digest] = turn
            turns.append(turn)
            if message.reasoning and (told := thought(message)):
                thoughts[place] = told
            above, level = turn, turn.below
        return View(
            turns=tuple(turns), thoughts=thoughts, tools=tools_meaning(request.tools), has_tools=bool(request.tools)
        )

    def prune(self, end: Turn) -> None:
        """Forget the messages that only a request had that ended here and is no call."""
        turn: Turn | None = end
        while turn is not None and not turn.asked and not turn.below:
            level = self._first if turn.above is None else turn.above.below
            level.pop(turn.meaning, None)
            turn = turn.above
