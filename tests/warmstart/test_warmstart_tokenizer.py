import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from clawexp.capture.tokenizer import Tokenizer
from clawexp.warmstart.tokenizer import SPECIAL, library_text, train_tokenizer, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(train_tokenizer(library_text(0.3), 1500), folder)
    return folder


def test_a_name_has_the_same_ids_wherever_it_stands(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    name = tokenizer.encode("harbor")
    for text in ("read harbor.txt", '{"path": "harbor.txt"}', "x = 1\nharbor = 2", json.dumps("one\nharbor\ntwo")):
        ids = tokenizer.encode(text)
        assert any(ids[i : i + len(name)] == name for i in range(len(ids))), text


def test_every_text_survives_encoding_and_decoding(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    for text in ("a\\nb\n\n  c\t1234", "käse 🧀 \\\\n", '<tool_call>\n{"a": "\\""}\n</tool_call>'):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_one_id_each_and_transformers_agrees(folder: Path) -> None:
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = f"{SPECIAL[1]}user\nWrite it to a.txt.{SPECIAL[2]}\n"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert [ours.encode(token) for token in SPECIAL] == [[number] for number in range(len(SPECIAL))]
