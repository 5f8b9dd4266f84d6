"""Requests that real harnesses sent, replayed in order; `--cases PATH` names the folder."""

import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clawexp.capture.conversation import Conversation
from clawexp.capture.dialects.table import DIALECTS
from clawexp.capture.exchange import Exchange
from clawexp.capture.message import Answer, Message
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer


def sampled_text(reply: dict[str, Any]) -> str:
    """A recorded reply as the model would have written it."""
    if "stop_reason" in reply:
        texts = [block["text"] for block in reply["content"] if block["type"] == "text"]
        calls = [
            (block["name"], json.dumps(block["input"])) for block in reply["content"] if block["type"] == "tool_use"
        ]
        return "".join(texts) + calls_text(calls)
    thought = f"<think>\n{reply['reasoning_content']}\n</think>\n\n" if reply.get("reasoning_content") else ""
    functions = [call["function"] for call in reply.get("tool_calls") or []]
    return thought + (reply.get("content") or "") + calls_text([(f["name"], f["arguments"]) for f in functions])


def calls_text(calls: Sequence[tuple[str, str]]) -> str:
    written = [f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}' for name, arguments in calls]
    return "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in written)


def replay(file: Path, scenario: str, rendering: Qwen3Rendering, tokenizer: Tokenizer) -> list[Exchange]:
    """The exchanges of one scenario, each answered as it was answered then."""
    rows = [row for row in map(json.loads, file.read_text().splitlines()) if row["scenario"] == scenario]
    conversation, exchanges = Conversation(rendering), []
    for position, row in enumerate(row for row in rows if isinstance(row["reply"], dict)):
        body, headers = json.dumps(row["body"]).encode(), {name.lower(): value for name, value in row["headers"]}
        path = row["path"].partition("?")[0]
        dialect = next(each for each in DIALECTS if each.serves(row["method"], path, headers))
        exchange = conversation.arrive(dialect.read(headers, body), hashlib.sha256(body).digest(), position)
        conversation.attach(exchange)
        ids = tokenizer.encode(sampled_text(row["reply"]) + "<|im_end|>")
        parsed = rendering.parse(ids)
        message = Message(
            role="assistant",
            content=parsed.content or ("" if parsed.tool_calls else "(empty)"),
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
        )
        answer = Answer(id="", created=0, message=message, finish="stop", prompt_tokens=0, sampled_tokens=len(ids))
        conversation.settle(exchange, str(position), ids, answer)
        exchanges.append(exchange)
    return exchanges


@pytest.mark.parametrize(
    ("harness", "scenario", "causes"),
    [
        ("pi", "pi1", ["root"] + ["continue"] * 4),
        ("pi", "pi2", ["root", "continue"]),
        ("pi", "pi-badtoolx1", ["root", "rewrite"]),
        ("openclaw", "oc1", ["root", "reminder"]),
        ("openclaw", "oc2", ["root"] + ["reminder"] * 6),
        ("openclaw", "oc-500x2", ["root", "continue"]),
        ("openclaw", "oc-emptyx1", ["root", "rewrite", "continue"]),
        # Cache marks move, and the last message is a block where it is a string later.
        ("claude-code", "claude1", ["root", "continue", "continue"]),
        ("claude-code", "claude-static", ["root", "continue", "continue", "continue"]),
        # Tools are added in the middle of the list; they are deferred, so the prompt has them later.
        ("claude-code", "claude-ts", ["root", "continue", "continue", "continue"]),
        ("claude-code", "claude-cc", ["root", "continue", "continue", "continue"]),
        ("claude-code", "claude-bare", ["root", "continue", "continue"]),
        ("claude-code", "f-claude-lenx1", ["root", "continue", "continue"]),
        ("claude-code", "f-claude-emptyx1", ["root", "rewrite", "continue"]),
        ("claude-code", "f-claude-badtoolx1", ["root", "rewrite"]),
    ],
)
def test_each_harness_forks_only_where_it_is_known_to(
    cases: Path, qwen3: Qwen3Rendering, tokenizer: Tokenizer, harness: str, scenario: str, causes: list[str]
) -> None:
    exchanges = replay(cases / "harness_requests" / f"{harness}.jsonl", scenario, qwen3, tokenizer)
    assert [exchange.cause for exchange in exchanges] == causes
    assert {exchange.kind for exchange in exchanges} == {"main"}
    for earlier, later in pairwise(exchanges):
        if later.cause == "continue":
            assert earlier.sequence is not None
            assert later.sequence is not None
            assert (later.sequence[: len(earlier.sequence)] == earlier.sequence).all()


def test_a_subagent_is_told_from_the_conversation_that_started_it(
    cases: Path, qwen3: Qwen3Rendering, tokenizer: Tokenizer
) -> None:
    exchanges = replay(cases / "harness_requests" / "openclaw.jsonl", "gw1", qwen3, tokenizer)
    assert [exchange.cause for exchange in exchanges][:3] == ["root", "subagent", "reminder"]
    assert [exchange.kind for exchange in exchanges][:3] == ["main", "auxiliary", "main"]


def test_the_helper_of_claude_code_is_auxiliary_and_the_main_conversation_goes_on_around_it(
    cases: Path, qwen3: Qwen3Rendering, tokenizer: Tokenizer
) -> None:
    exchanges = replay(cases / "harness_requests" / "claude-code.jsonl", "claude-git", qwen3, tokenizer)
    told = [(exchange.cause, exchange.kind) for exchange in exchanges]
    assert told[6] == ("subagent", "auxiliary")
    assert told[:6] + told[7:] == [("root", "main")] + [("continue", "main")] * 8
