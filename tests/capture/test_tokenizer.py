from pathlib import Path

import pytest

from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError


def test_text_comes_back_and_special_tokens_are_one_id(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\nnaïve ☕ <tool_call>{}</tool_call><|im_end|>\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in ids
    assert tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_half_a_surrogate_pair_is_encoded_as_a_question_mark(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("cut \ud83d here")) == "cut ? here"


def test_a_long_text_that_comes_again_has_its_own_ids_each_time(tokenizer: Tokenizer) -> None:
    text = "Read the file before you change it. " * 100
    ids = tokenizer.encode(text)
    first = list(ids)
    ids.clear()
    assert tokenizer.encode(text) == first
    assert tokenizer.decode(first) == text
    assert tokenizer.encode(text + "!") != first


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        Tokenizer(tmp_path)
