from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawexp.capture.message import Message, ToolCall
from clawexp.capture.rendering import Qwen3Rendering, open_rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError

USER = Message(role="user", content="read notes.txt")
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
LATER = st.lists(
    st.builds(Message, role=st.sampled_from(["user", "tool", "system"]), content=st.text(max_size=20)),
    min_size=1,
    max_size=4,
)


def test_a_prompt_ends_where_the_model_answers_without_thinking(qwen3: Qwen3Rendering, tokenizer: Tokenizer) -> None:
    text = tokenizer.decode(qwen3.render([Message(role="system", content="be kind"), USER], (TOOL,)))
    assert text.startswith("<|im_start|>system\nbe kind")
    assert '{"type": "function", "function": {"name": "read"' in text
    assert text.endswith("read notes.txt<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


@settings(max_examples=50, deadline=None)
@given(later=LATER, sampled=st.lists(st.integers(0, 255), max_size=8), ended=st.booleans())
def test_what_is_appended_does_not_depend_on_what_was_sampled(
    qwen3: Qwen3Rendering, later: list[Message], sampled: list[int], ended: bool
) -> None:
    prompt = np.array(qwen3.render([USER], ()))
    ids = [*(token for token in sampled if token not in qwen3.stop_ids), *([qwen3.stop_ids[0]] if ended else [])]
    added, usual = qwen3.extend(prompt, ids, later, ()), qwen3.extend(prompt, [qwen3.stop_ids[0]], later, ())
    assert usual is not None
    assert added == [*([] if ended else [qwen3.stop_ids[0]]), *usual]


def test_extending_with_canonical_ids_is_rendering_the_whole(qwen3: Qwen3Rendering, tokenizer: Tokenizer) -> None:
    call = ToolCall("read", {"path": "a", "n": 1})
    answer = Message(role="assistant", content="Reading.", tool_calls=(call,))
    sampled = tokenizer.encode(
        'Reading.\n<tool_call>\n{"name": "read", "arguments": {"path": "a", "n": 1}}\n</tool_call><|im_end|>'
    )
    later = [Message(role="tool", content="x = 4"), Message(role="tool", content="y"), USER]
    prompt = qwen3.render([USER], (TOOL,))
    added = qwen3.extend(np.array(prompt), sampled, later, (TOOL,))
    assert added is not None
    assert [*prompt, *sampled, *added] == qwen3.render([USER, answer, *later], (TOOL,))


def test_an_answer_that_was_not_sampled_cannot_be_appended(qwen3: Qwen3Rendering) -> None:
    prompt = np.array(qwen3.render([USER], ()))
    assert qwen3.extend(prompt, [qwen3.stop_ids[0]], [Message(role="assistant", content="no")], ()) is None


def test_parsing_gives_calls_with_their_values(qwen3: Qwen3Rendering, tokenizer: Tokenizer) -> None:
    text = 'Reading.\n<tool_call>\n{"name": "read", "arguments": {"path": "é"}}\n</tool_call><|im_end|>'
    parsed = qwen3.parse(tokenizer.encode(text))
    assert (parsed.content, parsed.verdict) == ("Reading.", "tool_calls")
    assert parsed.tool_calls == (ToolCall("read", {"path": "é"}),)


@pytest.mark.parametrize("body", ["[" * 3000, '{"name": "x", "arguments": {"n": ' + "1" * 5000 + "}}", "{"])
def test_no_sampled_text_can_break_the_parser(qwen3: Qwen3Rendering, tokenizer: Tokenizer, body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    parsed = qwen3.parse(tokenizer.encode(f"{text}<|im_end|>"))
    assert (parsed.verdict, parsed.content) == ("malformed", text)


def test_an_answer_without_its_stop_token_is_cut(qwen3: Qwen3Rendering, tokenizer: Tokenizer) -> None:
    parsed = qwen3.parse(tokenizer.encode("the weather is"))
    assert (parsed.verdict, parsed.content) == ("cut", "the weather is")


def test_a_vocabulary_without_the_model_s_tokens_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = (checkpoint / name).read_text().replace("<tool_response>", "<other>")
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match="template"):
        open_rendering(tmp_path, "qwen3")


def test_the_digest_follows_the_vocabulary_and_the_kind(checkpoint: Path) -> None:
    qwen3, template = open_rendering(checkpoint, "qwen3"), open_rendering(checkpoint, "template")
    assert qwen3.digest == open_rendering(checkpoint, "qwen3").digest
    assert qwen3.digest != template.digest
