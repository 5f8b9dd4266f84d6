"""Prompts as the capture proxy renders them, for engines with a script."""

from collections.abc import Sequence
from typing import Any

from clawexp.capture.message import Message
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.engine.script import Script
from clawexp.engine.tools import ToolCall
from clawexp.model.checkpoint import checkpoint_folder

FOLDER = checkpoint_folder("package:tiny")
TOKENIZER = Tokenizer(FOLDER)
RENDERING = Qwen3Rendering(TOKENIZER)
STOP = RENDERING.stop_ids[0]
READ: ToolCall = ("read", {"path": "a.txt"})
WRITE: ToolCall = ("write", {"path": "b.txt", "content": 'he said "no" \u2013 and\n\tleft'})


def tools(**named: Sequence[str]) -> tuple[Any, ...]:
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Text with\nlines.",
                "parameters": {"type": "object", "properties": {each: {"type": "string"} for each in arguments}},
            },
        }
        for name, arguments in named.items()
    )


TOOLS = tools(Read=["file_path"], Write=["file_path", "content"])


def says(script: Script, prompt: Sequence[int]) -> str:
    ids = script.answer(prompt, [STOP])
    assert ids[-1] == STOP
    return TOKENIZER.decode(ids[:-1])


def asked(instruction: str, offered: tuple[Any, ...] = TOOLS) -> list[int]:
    messages = [Message(role="system", content="Be good."), Message(role="user", content=f"[Mon] {instruction}")]
    return RENDERING.render(messages, offered)
