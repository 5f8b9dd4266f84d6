"""What goes wrong with a script's answers, by shares: drawn from the key of each call, so a run is the same every
time."""

import hashlib
from typing import Literal, Self

from pydantic import model_validator

from clawexp.component import component
from clawexp.spec import Share

Flaw = Literal["wrong", "malformed", "empty", "cut"]
Fault = Literal["error", "dropped"]
"""Status 503, or a connection that ends without an answer."""

FLAWS: tuple[Flaw, ...] = ("wrong", "malformed", "empty", "cut")


@component
class Flaws:
    """Of a script's answers, the share of each flaw."""

    wrong: Share
    """A tool call that does not help, where the next right one is due."""
    malformed: Share
    """A tool call that is no JSON."""
    empty: Share
    """Nothing but the end."""
    cut: Share
    """Ends half way, as at a limit on tokens."""
    faults: Share
    """Of generations, those whose first try the engine fails, by turns with an error and by dropping the connection."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        together = self.wrong + self.malformed + self.empty + self.cut
        if together > 1 + 1e-9:
            raise ValueError(f"wrong, malformed, empty and cut are {together:g} together, more than all answers")
        return self

    def of(self, key: str) -> Flaw | None:
        """What is wrong with the answer to this call."""
        drawn = _drawn("flaw", key)
        for flaw in FLAWS:
            drawn -= getattr(self, flaw)
            if drawn < 0:
                return flaw
        return None


class Faults:
    """The engine's own. Mutable: a second try succeeds."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._failed: set[str] = set()
        """Keys whose next try is the second."""

    def of(self, key: str) -> Fault | None:
        """How this try of a call fails."""
        drawn = _drawn("fault", key)
        if drawn >= self._share:
            return None
        if key in self._failed:
            self._failed.remove(key)
            return None
        self._failed.add(key)
        return "error" if drawn < self._share / 2 else "dropped"


def _drawn(what: str, key: str) -> float:
    """Uniform in [0, 1)."""
    digest = hashlib.sha256(f"{what}:{key}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
