"""The chat template that ships with a checkpoint, run as Hugging Face runs it, for tokenizers without exact
rendering."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from clawexp.capture.hermes import parse_text
from clawexp.capture.message import Message, Parsed, Refused, Tools
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError

MARK = "\u2062mark\u2062"
"""Stands for an earlier answer where only what follows it is rendered; no harness writes it."""
TEMPLATE_FAULTS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""How a template fails over a request that it was not written for: it joins what is no text, divides, looks up."""


class TemplateRendering:
    """Renders whole conversations by the template, and new turns as the text that the template puts after an answer."""

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        """Raises ConfigError where the checkpoint has no usable template or names no stop token."""
        self._tokenizer = tokenizer
        source = _source(tokenizer, folder)
        self._template = _compile(source, folder)
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        self._specials = {name: tokenizer.special(name) for name in names if tokenizer.special(name)}
        self.stop_ids = _stop_ids(tokenizer, folder)
        self._stops = [tokenizer.decode([stop]) for stop in self.stop_ids]
        parts = ("template", tokenizer.digest, source, json.dumps(self._specials))
        self.digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        try:
            text = self._text(messages, tools)
        except TEMPLATE_FAULTS as error:
            raise Refused("invalid_request", f"the model's chat template cannot say this: {error}") from error
        return self._tokenizer.encode(text)

    def extend(
        self,
        prompt: np.ndarray,
        sampled: Sequence[int],
        new_messages: Sequence[Message],
        tools: Tools,
    ) -> list[int] | None:
        if not new_messages or any(message.role == "assistant" for message in new_messages):
            return None
        after = self._after_answer(new_messages, tools)
        if after is None:
            return None
        stop, text = after
        if sampled and sampled[-1] in self.stop_ids:
            text = text.removeprefix(stop)
        return self._tokenizer.encode(text)

    def parse(self, sampled_ids: Sequence[int]) -> Parsed:
        ended = bool(sampled_ids) and sampled_ids[-1] in self.stop_ids
        return parse_text(self._tokenizer.decode(sampled_ids[:-1] if ended else sampled_ids), ended)

    def _after_answer(self, new_messages: Sequence[Message], tools: Tools) -> tuple[str, str] | None:
        """The stop token that ends an answer, and the text from it on when `new_messages` follow.

        Rendered behind a short conversation; None where the new turns change the text before the answer.
        """
        old = (Message(role="user", content="."), Message(role="assistant", content=MARK))
        try:
            text = self._text((*old, *new_messages), tools)
            other = self._text((*old, Message(role=new_messages[0].role, content=".")), tools)
        except TEMPLATE_FAULTS:
            return None
        before, mark, rest = text.partition(MARK)
        found = [(rest.index(stop), stop) for stop in self._stops if stop in rest]
        if not mark or not found or other.partition(MARK)[0] != before:
            return None
        at, stop = min(found)
        return stop, rest[at:]

    def _text(self, messages: Sequence[Message], tools: Tools) -> str:
        return self._template.render(
            messages=[_templated(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            documents=None,
            add_generation_prompt=True,
            enable_thinking=False,
            **self._specials,
        )


def _templated(message: Message) -> dict[str, Any]:
    templated: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        templated["reasoning_content"] = message.reasoning
    if message.tool_calls:
        templated["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        templated["tool_call_id"] = message.tool_call_id
    return templated


def _source(tokenizer: Tokenizer, folder: Path) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):  # named templates: the one for tools, where there is one
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise ConfigError(f"{folder} has no chat_template.jinja, and its tokenizer_config.json no chat_template")
    return template


def _compile(source: str, folder: Path) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template of {folder} does not compile: {error}") from error


def _tojson(value: Any, **options: Any) -> str:
    """JSON as `json.dumps` writes it; Jinja's own filter escapes for HTML and sorts keys."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _stop_ids(tokenizer: Tokenizer, folder: Path) -> tuple[int, ...]:
    """The end of turn by the tokenizer's config, then what the generation config adds."""
    file = folder / "generation_config.json"
    config: Mapping[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    more = config.get("eos_token_id") or []
    ids = [tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
    stops = tuple(dict.fromkeys(stop for stop in ids if stop is not None))
    if not stops:
        raise ConfigError(f"{folder}: neither tokenizer_config.json nor generation_config.json names an eos_token")
    return stops
