import pytest

from clawexp.redact import redact


def test_values_under_the_name_of_a_secret_are_hidden_at_any_depth() -> None:
    config = {"harness": [{"api_key": "abc", "password": "x"}], "HF_TOKEN": "y", "key": ""}
    assert redact(config) == {"harness": [{"api_key": "***", "password": "***"}], "HF_TOKEN": "***", "key": ""}


def test_what_only_looks_like_a_secret_is_shown() -> None:
    config = {"max_tokens": 4, "token_budget": 8, "tokenizer": "qwen3", "keys": ["a"], "keep_checkpoints": 2}
    assert redact(config) == config


def test_a_secret_of_the_environment_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hush-hush-1234")
    assert redact({"engine": {"url": "http://u:hush-hush-1234@h"}}) == {"engine": {"url": "http://u:***@h"}}


def test_the_config_itself_is_left_as_it_was() -> None:
    config = {"a": {"api_key": "abc"}}
    redact(config)
    assert config == {"a": {"api_key": "abc"}}
