"""Rules of the model boundary: what it changes in requests before the model sees them, and in answers before the
harness does. `clawexp.capture.rules` applies them; docs/capture.md says how to write one.

A rule looks at one text by itself, whatever stands around it, so the same history always becomes the same prompt.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from clawexp.component import component

NOTED = "rules."
"""Begins the name of a rule's edits on a call: `rules.openclaw.clock`."""

Part = Literal["system", "user", "tool_result", "tool_description", "answer"]
"""The texts a rule may look at. Of an answer that is what it says, what it thinks, and each text in its tool calls."""
HAVE_TOOLS = ("tool_result", "tool_description")


def _compiled(pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str | re.Pattern):
        raise ValueError(f"should be a regular expression (it is {pattern!r})")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error} (it is {pattern!r})") from error


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]


@component
class Replace:
    """Every match becomes another text."""

    part: Part
    tools: Pattern | None
    """Whose results or descriptions, by the whole name; None: all tools'."""
    pattern: Pattern
    by: str
    r"""May refer to groups of the pattern, `\1`."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        try:
            self.pattern.sub(self.by, "")
        except (re.error, IndexError) as error:
            raise ValueError(f"by: {error} (it is {self.by!r})") from error
        return _with_tools(self)


@component
class Block:
    """A text with a match becomes a notice, all of it. An answer keeps none of its tool calls either."""

    part: Part
    tools: Pattern | None
    """As in `Replace`."""
    pattern: Pattern
    notice: str

    @model_validator(mode="after")
    def _sound(self) -> Self:
        return _with_tools(self)


@component
class Drop:
    """A message with a match is left out; for `tool_description`, the tool is no longer offered."""

    part: Literal["system", "user", "tool_result", "tool_description"]
    tools: Pattern | None
    """As in `Replace`."""
    pattern: Pattern

    @model_validator(mode="after")
    def _sound(self) -> Self:
        return _with_tools(self)


@component
class Inject:
    """A text is put into the first message of the user, or into the system prompt; where the conversation does not
    begin with one, it is made."""

    part: Literal["system", "user"]
    text: str
    at: Literal["start", "end"]


@component
class CapMaxTokens:
    """No answer takes more tokens, whatever a harness asks."""

    max_tokens: Annotated[int, Field(ge=1)]


Rule = Replace | Block | Drop | Inject | CapMaxTokens
RuleSets = dict[str, dict[str, Rule]]
"""By set and name, in order: each option of `capture/rules` is a set."""

_SETS: TypeAdapter[RuleSets] = TypeAdapter(RuleSets)


def written(sets: RuleSets) -> Any:
    """As plain JSON, for another process."""
    return _SETS.dump_python(sets, mode="json")


def read(plain: Any) -> dict[str, Rule]:
    """Rules that were `written`, in order, by id. `{"openclaw.clock": Replace(...)}`"""
    sets = _SETS.validate_python(plain)
    return {f"{name}.{each}": rule for name, rules in sets.items() for each, rule in rules.items()}


def _with_tools(rule: Any) -> Any:
    if rule.tools is not None and rule.part not in HAVE_TOOLS:
        raise ValueError(f"tools: goes with part {' or '.join(HAVE_TOOLS)}, not {rule.part}; give null")
    return rule
