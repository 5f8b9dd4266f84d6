import random

import pytest

from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.taskset.workbench import Workbench
from clawexp.warmstart.demonstration import Text, demonstrate, letter_pieces, said_call, scrambled, solution
from clawexp.warmstart.sketch import Sketch

SKETCH = Sketch(harness="h", system="Do it.", tools=[], user="Now: {instruction}", wrote="ok {size} {path}")
TASK = Workbench(level=1, families=("lookup",), long_tokens=1).train(0, 1, seed=3)[0]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(checkpoint_folder("package:tiny"))


def oracle() -> Text:
    return solution(TASK, random.Random(0), right=1.0)


def test_what_the_model_says_is_marked_and_nothing_else(tokenizer: Tokenizer) -> None:
    text = oracle()
    found = demonstrate(text, SKETCH, Qwen3Rendering(tokenizer), tokenizer)
    said = [number for number, mine in zip(found.ids, found.sampled, strict=True) if mine]
    calls = [
        said_call(name, arguments, tokenizer, text.remark if place == 1 else "")
        for place, (name, arguments) in enumerate(text.calls)
    ]
    assert said[: sum(map(len, calls))] == [number for call in calls for number in call]
    assert said[-1] == tokenizer.eos_token_id
    heard = tokenizer.decode([number for number, mine in zip(found.ids, found.sampled, strict=True) if not mine])
    assert f"Now: {TASK.instruction}" in heard
    assert "<tool_call>" not in heard


def test_the_answer_is_looked_up_aloud() -> None:
    text = oracle()
    assert text.remark in text.files[next(iter(text.files))].split("\n")
    assert text.remark.endswith(text.calls[-1][1]["content"])


def test_wrong_solutions_read_the_same_and_write_otherwise_or_nothing() -> None:
    rng = random.Random(0)
    wrong = [solution(TASK, rng, right=0.0).calls for _ in range(50)]
    assert all(calls[:1] == TASK.oracle[:1] and calls != TASK.oracle for calls in wrong)
    assert {len(calls) for calls in wrong} == {1, 2}


def test_scrambling_renames_alike_everywhere_and_keeps_the_structure(tokenizer: Tokenizer) -> None:
    text = oracle()
    other = scrambled(text, random.Random(5), letter_pieces(tokenizer, 4096))
    (path,) = other.files
    assert path in other.instruction
    assert other.calls[0] == ("read", {"path": path})
    assert other.calls[1][1]["path"] in other.instruction
    assert other.calls[1][1]["content"] in other.files[path]
    assert other.instruction != text.instruction
