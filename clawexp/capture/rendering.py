"""Messages -> token ids, and sampled ids -> a parsed answer: one object for training and evaluation alike.

`extend` is the heart: it continues the exact ids of an earlier call, so that what was sampled is never
encoded again.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import renderers
from renderers.base import Message as RenderedMessage
from renderers.base import ParsedToolCall, ToolCallParseStatus, ToolSpec
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer

from clawexp.capture.hermes import judge
from clawexp.capture.message import Message, Parsed, ToolCall, Tools
from clawexp.capture.template import TemplateRendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError

QWEN3_MARKS = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "</think>"),
)
BLOCK = 256
"""Ids that are searched at once."""


class Rendering(Protocol):
    """Conversation <-> tokens of one model. Stateless: several threads may render at once."""

    stop_ids: tuple[int, ...]
    """Each ends an answer."""
    digest: str
    """Changes whenever the same conversation could give other ids."""

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Ids of a whole prompt, up to where the model answers. Raises Refused where the template cannot say it."""
        ...

    def extend(
        self,
        prompt: np.ndarray,
        sampled: Sequence[int],
        new_messages: Sequence[Message],
        tools: Tools,
    ) -> list[int] | None:
        """The ids that come after prompt and answer of an earlier call where `new_messages` follow.

        `prompt`: int32 [prompt]. None where the template cannot continue those ids as they are.
        """
        ...

    def parse(self, sampled_ids: Sequence[int]) -> Parsed: ...


class Qwen3Rendering:
    """Qwen3 by the `renderers` package, thinking off: every prompt ends with the empty think block, in
    history too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError where the vocabulary lacks one of Qwen3's tokens."""
        self._tokenizer = tokenizer
        unknown = (None, tokenizer.unk_token_id)
        # The renderer only asserts it, which a process started with -O does not.
        if lacking := [mark for mark in QWEN3_MARKS if tokenizer.convert_tokens_to_ids(mark) in unknown]:
            raise ConfigError(
                f"{tokenizer.name_or_path}: the vocabulary lacks {', '.join(lacking)}, which Qwen3's conversations are "
                "written with; choose model.rendering=template"
            )
        self._renderer = Qwen3Renderer(tokenizer, Qwen3RendererConfig(enable_thinking=False, thinking_retention="all"))
        self.stop_ids = tuple(self._renderer.get_stop_token_ids())
        self.digest = _digest("qwen3", renderers.__version__, tokenizer.digest)

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        return self._renderer.render_ids(_rendered(messages), tools=_specs(tools), add_generation_prompt=True)

    def extend(
        self,
        prompt: np.ndarray,
        sampled: Sequence[int],
        new_messages: Sequence[Message],
        tools: Tools,
    ) -> list[int] | None:
        # The bridge looks back no further than the turn that the prompt opens; the rest need not pass through it.
        opening = prompt[_last(prompt, self.stop_ids) :].tolist()
        bridge = self._renderer.bridge_to_next_turn(
            opening, list(sampled), _rendered(new_messages), tools=_specs(tools)
        )
        previous = [*opening, *sampled]
        if bridge is None or bridge.token_ids[: len(previous)] != previous:
            return None
        return bridge.token_ids[len(previous) :]

    def parse(self, sampled_ids: Sequence[int]) -> Parsed:
        ids = list(sampled_ids)
        ended = bool(ids) and ids[-1] in self.stop_ids
        text = self._tokenizer.decode(ids[:-1] if ended else ids)
        found = Parsed(content=text.strip(), reasoning="", tool_calls=(), verdict="text")
        attempts: list[ToolCall | None] = [None]
        try:
            response = self._renderer.parse_response(ids)
        except (ValueError, RecursionError):  # JSON nested without end, or a number of 5000 digits
            return judge(text, ended, found, attempts)
        attempts = [_attempt(call) for call in response.tool_calls]
        reasoning = response.reasoning_content or ""
        found = Parsed(content=response.content, reasoning=reasoning, tool_calls=(), verdict="text")
        return judge(text, ended, found, attempts)


def _last(ids: np.ndarray, wanted: Sequence[int]) -> int:
    """Where one of `wanted` stands last; 0 where none does. It is looked for from the end."""
    for end in range(len(ids), 0, -BLOCK):
        begin = max(0, end - BLOCK)
        block = ids[begin:end].tolist()
        found = next((place for place in range(len(block) - 1, -1, -1) if block[place] in wanted), None)
        if found is not None:
            return begin + found
    return 0


def open_rendering(folder: Path, kind: Literal["qwen3", "template"]) -> Rendering:
    """The rendering of the checkpoint in `folder`. Raises ConfigError."""
    tokenizer = Tokenizer(folder)
    return Qwen3Rendering(tokenizer) if kind == "qwen3" else TemplateRendering(tokenizer, folder)


def _rendered(messages: Sequence[Message]) -> list[RenderedMessage]:
    return [_rendered_message(message) for message in messages]


def _rendered_message(message: Message) -> RenderedMessage:
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        rendered["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls]
        rendered["tool_calls"] = calls
    return cast("RenderedMessage", rendered)


def _specs(tools: Tools) -> list[ToolSpec] | None:
    return cast("list[ToolSpec]", [dict(tool) for tool in tools]) or None


def _attempt(call: ParsedToolCall) -> ToolCall | None:
    if call.status is not ToolCallParseStatus.OK:
        return None
    return ToolCall(name=call.name or "", arguments=call.arguments)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
