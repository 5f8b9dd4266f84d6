"""Takes secrets out of a config before it is shown to anyone.

None should be there. This is for the one that got in by interpolation or by mistake.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
MIN_SECRET = 6
"""Shorter values are no secrets worth the name, and would blot out ordinary text."""

_NAME = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a value of this name is a secret: a key, a token, a password. `WANDB_API_KEY`"""
    return _NAME.search(name) is not None


def redact(config: Any) -> Any:
    """The same config with `***` for values under a secret's name, and for secrets of the environment anywhere.

    `{"api_key": "abc", "max_tokens": 4}` becomes `{"api_key": "***", "max_tokens": 4}`.
    """
    secrets = [value for name, value in os.environ.items() if is_secret(name) and len(value) >= MIN_SECRET]
    return _walk(config, sorted(secrets, key=len, reverse=True))


def _walk(node: Any, secrets: list[str]) -> Any:
    if isinstance(node, Mapping):
        return {name: _field(str(name), value, secrets) for name, value in node.items()}
    if isinstance(node, list | tuple):
        return [_walk(item, secrets) for item in node]
    if isinstance(node, str):
        for secret in secrets:
            node = node.replace(secret, HIDDEN)
    return node


def _field(name: str, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str) and value and is_secret(name):
        return HIDDEN
    return _walk(value, secrets)
