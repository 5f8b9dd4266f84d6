"""A checkpoint's tokenizer files -> text to ids and back, with the few attributes that renderers ask for."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from clawexp.errors import ConfigError

SHORT = 64
"""Characters. Most of what a template puts around turns is short, and the same each time."""
LONG = 2048
"""Characters. System prompts with their tools are longer; every rollout of a harness begins with the same."""
LONGEST_KEPT = 2**18


class Tokenizer:
    """`tokenizer.json` behind the protocol `renderers.base.Tokenizer`. Special tokens in a text become their ids."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError where the folder has no readable tokenizer."""
        self.name_or_path = str(folder)
        self.config = _read_config(folder / "tokenizer_config.json")
        try:
            content = (folder / "tokenizer.json").read_text()
        except OSError as error:
            raise ConfigError(f"no tokenizer.json in {folder}: {error}; check model.path") from error
        self._backend = tokenizers.Tokenizer.from_str(content)
        self._short = lru_cache(maxsize=4096)(self._encode)
        self._long = lru_cache(maxsize=64)(self._packed)
        self.digest = hashlib.sha256(content.encode()).hexdigest()
        self.eos_token_id = self.convert_tokens_to_ids(self.special("eos_token"))
        self.unk_token_id = self.convert_tokens_to_ids(self.special("unk_token"))

    def special(self, name: str) -> str:
        """The token that the config calls `name` (`eos_token`, ...); empty where it has none."""
        token = self.config.get(name)
        return (token["content"] if isinstance(token, dict) else token) or ""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        if len(text) <= SHORT:
            return list(self._short(text, add_special_tokens))
        if LONG <= len(text) <= LONGEST_KEPT:
            return self._long(text, add_special_tokens).tolist()
        return self._encode(text, add_special_tokens)

    def _packed(self, text: str, add_special_tokens: bool) -> np.ndarray:
        """The ids in a tenth of a list's memory, int32."""
        return np.array(self._encode(text, add_special_tokens), np.int32)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Programs cut their output inside a surrogate pair, JSON carries the half over, and no tokenizer
        # takes it.
        whole = text.encode("utf-8", "replace").decode()
        # Of one text, but without Python's lock: a long text is encoded in a thread, and others go on.
        (encoded,) = self._backend.encode_batch_fast([whole], add_special_tokens=add_special_tokens)
        return encoded.ids

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """The id of one token; None where the vocabulary lacks it."""
        return self._backend.token_to_id(tokens)


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
