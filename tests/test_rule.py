import json
from typing import Any

import pytest
from pydantic import ValidationError

from clawexp.rule import Block, CapMaxTokens, Drop, Inject, Replace, RuleSets, read, written


def test_rules_come_back_from_json_in_order_and_by_set_and_name() -> None:
    sets: RuleSets = {
        "one": {
            "clock": Replace(part="user", tools=None, pattern=r"(\d+):\d+", by=r"\1"),  # pyright: ignore[reportArgumentType]
            "log": Block(part="tool_result", tools="(?i)bash", pattern="^commit", notice="no"),  # pyright: ignore[reportArgumentType]
        },
        "two": {
            "search": Drop(part="tool_description", tools="web_.*", pattern=""),  # pyright: ignore[reportArgumentType]
            "short": Inject(part="system", text="Be short.", at="end"),
            "cap": CapMaxTokens(max_tokens=64),
        },
    }
    found = read(json.loads(json.dumps(written(sets))))
    assert list(found) == ["one.clock", "one.log", "two.search", "two.short", "two.cap"]
    assert list(found.values()) == [rule for rules in sets.values() for rule in rules.values()]


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (Replace, {"part": "user", "tools": None, "pattern": "((", "by": ""}, "no regular expression"),
        (Replace, {"part": "user", "tools": None, "pattern": 3, "by": ""}, "should be a regular expression"),
        (Replace, {"part": "user", "tools": None, "pattern": "(x)", "by": r"\2"}, "invalid group reference"),
        (Replace, {"part": "user", "tools": None, "pattern": "(x)", "by": r"\g<no>"}, "unknown group name"),
        (Replace, {"part": "reply", "tools": None, "pattern": "x", "by": ""}, "part"),
        (Block, {"part": "system", "tools": "bash", "pattern": "x", "notice": ""}, "tools: goes with part tool_result"),
        (Drop, {"part": "answer", "tools": None, "pattern": "x"}, "part"),
        (CapMaxTokens, {"max_tokens": 0}, "max_tokens"),
        (Inject, {"part": "system", "text": "x", "at": "end", "tools": None}, "tools"),
    ],
)
def test_a_wrong_rule_is_refused(kind: Any, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        kind(**fields)
