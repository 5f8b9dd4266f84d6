import json
from pathlib import Path

import numpy as np
import pytest

from clawexp.capture.message import Message, Refused, ToolCall
from clawexp.capture.template import TemplateRendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError

USER = Message(role="user", content="read notes.txt")
TOOL = {"type": "function", "function": {"name": "read", "description": "Größe <b> & 'x'"}}


@pytest.fixture(scope="module")
def template(tokenizer: Tokenizer, checkpoint: Path) -> TemplateRendering:
    return TemplateRendering(tokenizer, checkpoint)


def test_a_conversation_is_rendered_as_the_template_says(template: TemplateRendering, tokenizer: Tokenizer) -> None:
    call = Message(role="assistant", content="", tool_calls=(ToolCall("read", {"path": "é"}),))
    text = tokenizer.decode(template.render([USER, call, Message(role="tool", content="4")], ()))
    assert text == (
        "<|im_start|>user\nread notes.txt<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "read", "arguments": {"path": "é"}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    )


def test_json_is_neither_escaped_nor_sorted(template: TemplateRendering, tokenizer: Tokenizer) -> None:
    text = tokenizer.decode(template.render([USER], (TOOL,)))
    assert json.dumps(TOOL, ensure_ascii=False) in text


def test_extending_canonical_ids_is_rendering_the_whole(template: TemplateRendering, tokenizer: Tokenizer) -> None:
    later = [Message(role="tool", content="x = 4"), USER]
    prompt, sampled = template.render([USER], ()), tokenizer.encode("Reading.<|im_end|>")
    whole = template.render([USER, Message(role="assistant", content="Reading."), *later], ())
    added = template.extend(np.array(prompt), sampled, later, ())
    assert added is not None
    assert [*prompt, *sampled, *added] == whole
    cut = tokenizer.encode("Reading.")
    added = template.extend(np.array(prompt), cut, later, ())
    assert added is not None
    assert tokenizer.decode([*prompt, *cut, *added]) == tokenizer.decode(whole)


def test_what_the_template_refuses_is_refused_with_its_words(template: TemplateRendering) -> None:
    late = Message(role="system", content="late")
    with pytest.raises(Refused, match="System must be first"):
        template.render([USER, late], ())
    assert template.extend(np.array(template.render([USER], ())), list(template.stop_ids), [late], ()) is None


def test_a_template_that_rewrites_the_past_cannot_be_continued(
    tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path
) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    rewriting = TemplateRendering(tokenizer, tmp_path)
    assert rewriting.extend(np.array(rewriting.render([USER], ())), list(rewriting.stop_ids), [USER, USER], ()) is None


def test_templates_run_in_a_sandbox(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(Refused):
        TemplateRendering(tokenizer, tmp_path).render([USER], ())


def test_a_checkpoint_without_a_template_is_named(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    with pytest.raises(ConfigError, match="chat_template"):
        TemplateRendering(Tokenizer(tmp_path), tmp_path)


def test_answers_are_parsed_from_their_text(template: TemplateRendering, tokenizer: Tokenizer) -> None:
    text = 'Hm.<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call><|im_end|>'
    parsed = template.parse(tokenizer.encode(text))
    assert (parsed.content, parsed.verdict, parsed.tool_calls) == (
        "Hm.",
        "tool_calls",
        (ToolCall("read", {"path": "a"}),),
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 / (messages | length - 1) }}",
        "{{ '%d' | format(messages[0].content) }}",
    ],
)
def test_a_template_that_fails_over_a_request_refuses_it(tokenizer: Tokenizer, tmp_path: Path, source: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    template = TemplateRendering(tokenizer, tmp_path)
    with pytest.raises(Refused, match="the model's chat template cannot say this"):
        template.render([USER], ())
    assert template.extend(np.array([1]), [2], [USER], ()) is None
