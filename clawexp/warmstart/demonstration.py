"""A task and a sketch -> the ids of one conversation, as the harness would lead it with a model of our choosing."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clawexp.capture.message import Message
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.engine.script import tool_call_text
from clawexp.records import Task
from clawexp.taskset.distractors import distractors
from clawexp.taskset.words import POOLS, half
from clawexp.warmstart.sketch import Sketch

CLOSING = "Done."


@dataclass(frozen=True)
class Text:
    """A task as plain text: what a demonstration needs of it."""

    instruction: str
    files: Mapping[str, str]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]

    @property
    def remark(self) -> str:
        """What is said before the last call: the line that holds its one-word answer, so that it is looked up aloud."""
        if not self.calls:
            return ""
        name, arguments = self.calls[-1]
        if name != "write" or "\n" in arguments["content"]:
            return ""
        lines = [line for content in self.files.values() for line in content.split("\n")]
        found = [line for line in lines if re.search(rf"[ ,]{re.escape(arguments['content'])}$", line)]
        return next((line for line in found if " = " in line or "," in line), "")


def solution(task: Task, rng: random.Random, right: float) -> Text:
    """The oracle with probability `right`, else something plausible and wrong: another answer, or none at all."""
    files = {path: content.decode() for path, content in task.files.items()}
    calls = task.oracle
    if rng.random() >= right:
        same_reads = [d for d in distractors(task) if d[:-1] == task.oracle[:-1]]
        calls = rng.choice([*same_reads, task.oracle[:-1]]) if rng.random() < 0.9 else task.oracle[:-1]
    return Text(task.instruction, files, calls)


def scrambled(text: Text, rng: random.Random, pieces: Sequence[str]) -> Text:
    """The same task in made-up words, so that copying is learned and not the words."""
    words = {word for pool in POOLS for word in half(pool, "train")}
    made: dict[str, str] = {}

    def swap(found: re.Match[str]) -> str:
        word = found.group()
        if word.lower() not in words:
            return word
        if word not in made:
            fresh = "".join(rng.choices(pieces, k=rng.choice((1, 1, 2))))
            made[word] = fresh.upper() if word.isupper() else fresh
        return made[word]

    def swapped(string: str) -> str:
        return re.sub(r"[A-Za-z]+", swap, string)

    return Text(
        swapped(text.instruction),
        {swapped(path): swapped(content) for path, content in text.files.items()},
        tuple((tool, {key: swapped(value) for key, value in arguments.items()}) for tool, arguments in text.calls),
    )


@dataclass(frozen=True)
class Demonstration:
    """One conversation as the learner sees it."""

    ids: list[int]
    sampled: list[bool]
    """Which ids the model is to say."""


def demonstrate(text: Text, sketch: Sketch, rendering: Qwen3Rendering, tokenizer: Tokenizer) -> Demonstration:
    """Render the conversation turn by turn, each prompt the exact ids of the last one and of the answer to it."""
    tools = tuple(sketch.tools)
    messages = [
        Message(role="system", content=sketch.system),
        Message(role="user", content=sketch.user_text(text.instruction)),
    ]
    prompt = rendering.render(messages, tools)
    sampled: list[bool] = [False] * len(prompt)
    files = dict(text.files)
    for number, (name, arguments) in enumerate(text.calls, start=1):
        answer = said_call(name, arguments, tokenizer, text.remark if number == len(text.calls) else "")
        result = sketch.result(name, arguments, files)
        if name == "write":
            files[arguments["path"]] = arguments["content"]
        added = rendering.extend(np.array(prompt), answer, [Message(role="tool", content=result)], tools)
        assert added is not None, "a tool result always continues a closed answer"
        sampled += [True] * len(answer) + [False] * len(added)
        prompt += [*answer, *added]
    closing = [*tokenizer.encode(CLOSING), tokenizer.eos_token_id or 0]
    return Demonstration(prompt + closing, sampled + [True] * len(closing))


def drill(text: Text, tokenizer: Tokenizer, start: int) -> Demonstration:
    """The same task without the frame around it: only names and contents are to be said, so all of it teaches."""
    ids, sampled = [start], [False]

    def put(string: str, said: bool) -> None:
        piece = tokenizer.encode(string)
        ids.extend(piece)
        sampled.extend([said] * len(piece))

    put(f"user\n{text.instruction}\n", said=False)
    for number, (name, arguments) in enumerate(text.calls, start=1):
        if number == len(text.calls) and text.remark:
            put(f"{text.remark}\n", said=True)
        put(f'{{"name": "{name}", "arguments": {{"path": "', said=False)
        put(arguments["path"], said=True)
        if name == "write":
            put('", "content": "', said=False)
            put(json.dumps(arguments["content"], ensure_ascii=False)[1:-1], said=True)
            put('"}}\n', said=False)
        else:
            put('"}}\n', said=False)
            put(f"<tool_response>\n{text.files[arguments['path']]}\n", said=False)
    return Demonstration(ids, sampled)


def said_call(name: str, arguments: Mapping[str, Any], tokenizer: Tokenizer, remark: str) -> list[int]:
    """The ids of an answer that calls one tool, after a remark or none, as Qwen3's template writes it."""
    said = f"{remark}\n" if remark else ""
    return [*tokenizer.encode(f"{said}{tool_call_text(name, arguments)}"), tokenizer.eos_token_id or 0]


def letter_pieces(tokenizer: Tokenizer, count: int) -> list[str]:
    """The vocabulary's lowercase pieces of two letters or more."""
    texts = (tokenizer.decode([number]) for number in range(count))
    return [text for text in texts if len(text) >= 2 and text.isascii() and text.isalpha() and text.islower()]
