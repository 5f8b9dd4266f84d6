"""What is wrong with a command line, said so that its writer can put it right."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from clawexp.errors import ConfigError

LONGEST = 200
"""Characters of a word of the command line in a message."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a command line or a config file."""

    where: str
    """What the user wrote, or the key."""
    what: str


def refuse(problems: Sequence[Problem]) -> None:
    """Raise ConfigError listing all `problems`, if there are any."""
    if not problems:
        return
    shown = [(shorten(problem.where), problem.what) for problem in problems]
    width = max(len(where) for where, _ in shown)
    lines = "\n".join(f"  {where:<{width}}  {what}" for where, what in shown)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise ConfigError(f"{count} in the experiment; nothing was started\n{lines}")


def shorten(text: str) -> str:
    """The beginning of what was written, where that is very long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def nearest(word: str, known: Sequence[str]) -> str:
    """`did you mean x?`, or the whole list when nothing is near. A key is also near by its last part."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not close:
        last = word.rsplit(".", 1)[-1]
        close = [key for key in known if key.rsplit(".", 1)[-1] == last][:1]
    if close:
        return f"did you mean {close[0]}?"
    if not known:
        return "there is none yet"
    return f"choose one of {', '.join(known)}" if len(known) <= 12 else "see --cfg job for all keys"


def nearest_key(key: str, known: Sequence[str]) -> str:
    """Looks in the key's own section first, where that exists."""
    section = key.rpartition(".")[0]
    siblings = [k for k in known if k.rpartition(".")[0] == section and "_target_" not in k] if section else []
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.8)
    if siblings and not close:
        return f"{section} has {', '.join(k.rpartition('.')[2] for k in siblings)}"
    return nearest(key, close or known)
