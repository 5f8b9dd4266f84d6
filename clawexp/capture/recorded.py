"""Requests that a harness once sent, and the replies that it got -> the calls they would be here, and their forks.

A folder of recorded traffic has one file of JSON lines per harness, in order of arrival: `harness`, `scenario` (one run
of it), `method`, `path`, `headers` (pairs), `body`, and `reply`: what a model answered, in the dialect's form of an
assistant's turn; anything else for a request that got no answer.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from clawexp.capture.conversation import Conversation
from clawexp.capture.dialects.dialect import Asked, Dialect
from clawexp.capture.dialects.table import DIALECTS
from clawexp.capture.exchange import Exchange
from clawexp.capture.meaning import digests, stringify
from clawexp.capture.message import Answer, Message
from clawexp.capture.rendering import Rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError

FIELDS = ("harness", "scenario", "method", "path", "headers", "body", "reply")
STOP = "<|im_end|>"

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One run of a harness, as the calls that it would be here."""

    harness: str
    scenario: str
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, kw_only=True)
class Replayer:
    """What turns recorded conversations into tokens."""

    rendering: Rendering
    tokenizer: Tokenizer

    def folder(self, folder: Path) -> Iterator[Recorded]:
        """All runs of all harnesses. Raises ConfigError where the folder holds something else, Refused where a request
        would be."""
        files = sorted(folder.glob("*.jsonl"))
        if not files:
            raise ConfigError(f"{folder}: no recorded requests there (no *.jsonl)")
        for file in files:
            yield from self.file(file)

    def file(self, file: Path) -> Iterator[Recorded]:
        """The runs of one harness."""
        for (harness, scenario), rows in groupby(_rows(file), key=lambda row: (row["harness"], row["scenario"])):
            yield Recorded(harness=harness, scenario=scenario, exchanges=self._exchanges(list(rows)))

    def _exchanges(self, rows: Sequence[Row]) -> tuple[Exchange, ...]:
        conversation = Conversation(self.rendering)
        answered = [row for row in rows if isinstance(row["reply"], dict | list)]
        return tuple(self._exchange(conversation, row, position) for position, row in enumerate(answered))

    def _exchange(self, conversation: Conversation, row: Row, position: int) -> Exchange:
        asked = _asked(row)
        dialect = next(each for each in DIALECTS if each.serves(asked))
        body = json.dumps(row["body"]).encode()
        request = dialect.read(asked, body)
        exchange = conversation.arrive(request, hashlib.sha256(body).digest(), position)
        if not conversation.extend(exchange, request):
            conversation.render(exchange, request)
        said = _said(dialect, asked, row["reply"])
        ids = self.tokenizer.encode(_written(said) + STOP)
        answer = Answer(id="", created=0, message=said, finish="stop", prompt_tokens=0, sampled_tokens=len(ids))
        exchange.call_id = str(position)
        conversation.attach(exchange, ids)
        conversation.settle(exchange, answer, digests(answer.message))
        return exchange


def causes(recorded: Sequence[Recorded]) -> dict[str, Counter[str]]:
    """How often a call began, continued or forked, by harness and cause."""
    counted: dict[str, Counter[str]] = {}
    for run in recorded:
        counted.setdefault(run.harness, Counter()).update(exchange.cause for exchange in run.exchanges)
    return counted


def _rows(file: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{file}:{number}: no JSON ({error})") from error
        missing = [field for field in FIELDS if not isinstance(row, dict) or field not in row]
        if missing:
            raise ConfigError(f"{file}:{number}: a recorded request has {', '.join(FIELDS)}; {missing[0]} is missing")
        rows.append(row)
    return rows


def _asked(row: Row) -> Asked:
    path, _, query = row["path"].partition("?")
    headers = {name.lower(): value for name, value in row["headers"]}
    return Asked(method=row["method"], path=path, query=dict(parse_qsl(query)), headers=headers)


def _said(dialect: Dialect, asked: Asked, reply: Any) -> Message:
    """The reply as the dialect reads it where it comes back as history."""
    bodies: Mapping[str, Any] = {
        "openai_chat": {"messages": [reply]},
        "openai_responses": {"input": reply},
        "gemini": {"contents": [reply]},
        "anthropic_messages": {"messages": [reply, {"role": "user", "content": "."}]},
    }
    return dialect.read(asked, json.dumps(bodies[dialect.name]).encode()).messages[0]


def _written(said: Message) -> str:
    """A turn as a model of the Hermes form would have written it."""
    thought = f"<think>\n{said.reasoning}\n</think>\n\n" if said.reasoning else ""
    calls = [
        f'\n<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {_spaced(call.arguments)}}}\n</tool_call>'
        for call in said.tool_calls
    ]
    return thought + said.content + "".join(calls)


def _spaced(arguments: Any) -> str:
    """Arguments as models write them, which is not how harnesses write them back."""
    return arguments if isinstance(arguments, str) else json.dumps(json.loads(stringify(arguments)))
