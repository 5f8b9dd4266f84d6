"""Applies the experiment's rules: to a request once its dialect has read it, before anything is compared or rendered,
and to an answer before its dialect writes it."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from clawexp.capture.message import Message, Refused, Request, ToolCall
from clawexp.errors import CaptureError
from clawexp.records import Edit
from clawexp.rule import NOTED, Block, CapMaxTokens, Drop, Inject, Part, Replace, Rule

LONGEST_S = 2.0
"""CPU time of one rule on one request: a pattern that backtracks without end would hold up every rollout."""
ROLES: Mapping[Part, str] = {"system": "system", "user": "user", "tool_result": "tool"}

PatternRule = Replace | Block | Drop
"""Rules that look for a pattern."""


class Rules:
    """Of one experiment, in order, by id. Used by the main thread alone, since the limit on time is a signal."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._requests = {name: rule for name, rule in rules.items() if _part(rule) != "answer"}
        self._answers = {name: rule for name, rule in rules.items() if _part(rule) == "answer"}

    def request(self, request: Request) -> Request:
        """The request as the model gets it. Raises CaptureError where a pattern takes too long, Refused where nothing
        of the request is left."""
        if not self._requests:
            return request
        draft = _Draft.of(request)
        for name, rule in self._requests.items():
            with limited(name):
                draft.apply(NOTED + name, rule)
        return draft.request(request)

    def answer(self, message: Message) -> tuple[Message, tuple[Edit, ...]]:
        """The answer as the harness is told it. Raises CaptureError where a pattern takes too long."""
        edits = []
        for name, rule in self._answers.items():
            with limited(name):
                after = _answered(rule, message)
            if after != message:
                edits.append(Edit(rule=NOTED + name, before=_noted(message), after=_noted(after)))
                message = after
        return message, tuple(edits)


@dataclass(slots=True, kw_only=True, eq=False)
class _Draft:
    """A request while rules change it."""

    places: list[Message | None]
    """Messages, None where one was dropped; the first place is for a system prompt that is made."""
    tools: list[Mapping[str, Any]]
    max_tokens: int | None
    names: dict[int, str]
    """By place of a result: its tool."""
    message_edits: list[tuple[int, Edit]] = field(default_factory=list)
    """By place."""
    tool_edits: list[Edit] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> "_Draft":
        places: list[Message | None] = [None, *request.messages]
        return cls(
            places=places, tools=list(request.tools), max_tokens=request.max_tokens, names=dict(_tool_names(places))
        )

    def apply(self, name: str, rule: Rule) -> None:
        match rule:
            case CapMaxTokens():
                self._cap(name, rule.max_tokens)
            case Inject():
                self._inject(name, rule)
            case _ if rule.part == "tool_description":
                self._redescribe(name, rule)
            case _:
                self._tell(name, rule)

    def request(self, request: Request) -> Request:
        """What became of it, with its edits. Raises Refused."""
        messages = tuple(message for message in self.places if message is not None)
        if not messages:
            raise Refused("invalid_request", "the rules of this experiment leave no message of the request")
        before = [0]
        for message in self.places:
            before.append(before[-1] + (message is not None))
        return replace(
            request,
            messages=messages,
            tools=tuple(self.tools),
            max_tokens=self.max_tokens,
            edits=(*request.edits, *self.edits),
            message_edits=tuple((before[place], edit) for place, edit in self.message_edits),
            tool_edits=tuple(self.tool_edits),
        )

    def _cap(self, name: str, most: int) -> None:
        if self.max_tokens is None or self.max_tokens > most:
            self.edits.append(Edit(rule=name, before=self.max_tokens, after=most))
            self.max_tokens = most

    def _inject(self, name: str, rule: Inject) -> None:
        # A system prompt was made, or came first: a later system message must not change what came before it.
        among = self.places[:2] if rule.part == "system" else self.places
        found = next(((place, told) for place, told in enumerate(among) if told and told.role == rule.part), None)
        if found is not None:
            place, message = found
            both = (rule.text, message.content) if rule.at == "start" else (message.content, rule.text)
            self._put(name, place, "".join(both))
        elif rule.part == "system":
            self.message_edits.append((0, Edit(rule=name, before=None, after=rule.text)))
            self.places[0] = Message(role="system", content=rule.text)

    def _tell(self, name: str, rule: PatternRule) -> None:
        for place, message in enumerate(self.places):
            if message is None or message.role != ROLES[rule.part]:
                continue
            if rule.tools is None or rule.tools.fullmatch(self.names.get(place, "")):
                self._put(name, place, _changed(rule, message.content))

    def _put(self, name: str, place: int, text: str | None) -> None:
        message = self.places[place]
        assert message is not None
        if text != message.content:
            self.message_edits.append((place, Edit(rule=name, before=message.content, after=text)))
            self.places[place] = None if text is None else replace(message, content=text)

    def _redescribe(self, name: str, rule: PatternRule) -> None:
        kept = []
        for tool in self.tools:
            function = tool["function"]
            before = function.get("description") or ""
            meant = rule.tools is None or rule.tools.fullmatch(function["name"])
            after = _changed(rule, before) if meant and isinstance(before, str) else before
            if after != before:
                noted = {"name": function["name"], "description": after}
                edit = Edit(
                    rule=name,
                    before={**noted, "description": before},
                    after=None if after is None else noted,
                )
                self.tool_edits.append(edit)
                tool = {**tool, "function": {**function, "description": after}}
            if after is not None:
                kept.append(tool)
        self.tools = kept


def _part(rule: Rule) -> Part | None:
    return None if isinstance(rule, CapMaxTokens) else rule.part


def _changed(rule: PatternRule, text: str) -> str | None:
    """The text by the rule; None where it is dropped."""
    match rule:
        case Replace():
            return rule.pattern.sub(rule.by, text)
        case Block():
            return rule.notice if rule.pattern.search(text) else text
        case Drop():
            return None if rule.pattern.search(text) else text


def _answered(rule: Rule, message: Message) -> Message:
    match rule:
        case Replace():

            def sub(text: str) -> str:
                return rule.pattern.sub(rule.by, text)

            calls = tuple(replace(call, arguments=_mapped(call.arguments, sub)) for call in message.tool_calls)
            said = replace(message, content=sub(message.content), reasoning=sub(message.reasoning))
            return replace(said, tool_calls=calls)
        case Block() if any(rule.pattern.search(text) for text in _texts(message)):
            return Message(role=message.role, content=rule.notice)
        case _:
            return message


def _texts(message: Message) -> Iterator[str]:
    found: list[str] = [message.content, message.reasoning]
    for call in message.tool_calls:
        _mapped(call.arguments, lambda text: found.append(text) or text)
    yield from found


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """JSON with each text in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value


def _noted(message: Message) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return {"content": message.content, "reasoning": message.reasoning, "tool_calls": calls}


def _tool_names(places: list[Message | None]) -> Iterator[tuple[int, str]]:
    """Which tool each result is of: by the call's id, else in the order of the calls, since not every dialect has
    ids."""
    waiting: list[ToolCall] = []
    for place, message in enumerate(places):
        if message is not None and message.role == "assistant":
            waiting = list(message.tool_calls)
        elif message is not None and message.role == "tool" and waiting:
            same = [call for call in waiting if call.id and call.id == message.tool_call_id]
            call = (same or waiting)[0]
            waiting.remove(call)
            yield place, call.name


@contextmanager
def limited(name: str) -> Iterator[None]:
    """End what takes too long; Python's regular expressions look at signals while they search.

    The timer counts the time of all threads of the process, so it is set again until this one has used up its own.
    """
    end = time.thread_time() + LONGEST_S

    def look(_signal: int, _frame: object) -> None:
        left = end - time.thread_time()
        if left > 0:
            signal.setitimer(signal.ITIMER_VIRTUAL, left)
            return
        raise CaptureError(
            f"rule {name} took more than {LONGEST_S:g} s for one request. Its pattern backtracks; see docs/capture.md."
        )

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
