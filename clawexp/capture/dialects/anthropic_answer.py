"""An answer -> Anthropic's message, whole or as the events of a stream."""

from collections.abc import Iterator, Mapping
from typing import Any

from clawexp.capture.meaning import stringify
from clawexp.capture.message import Answer, Finish

STOP_REASON: Mapping[Finish, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
SIGNATURE = "bm90IHNpZ25lZA=="
"""Clients hand it back with the thinking that it came with, and do not look inside."""


def whole(answer: Answer, model: str) -> dict[str, Any]:
    """The message as one object."""
    usage = _usage(answer, answer.sampled_tokens)
    return {**_message(answer, model), "content": _blocks(answer), **_stop(answer), "usage": usage}


def events(answer: Answer, model: str) -> Iterator[dict[str, Any]]:
    """The message as events: it starts empty, each block is opened, filled and closed, and only then it ends."""
    empty = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer, 0)}
    yield {"type": "message_start", "message": {**_message(answer, model), **empty}}
    for index, block in enumerate(_blocks(answer)):
        opened, deltas = _pieces(block)
        yield {"type": "content_block_start", "index": index, "content_block": opened}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": _stop(answer), "usage": _usage(answer, answer.sampled_tokens)}
    yield {"type": "message_stop"}


def _message(answer: Answer, model: str) -> dict[str, Any]:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": model}


def _stop(answer: Answer) -> dict[str, Any]:
    return {"stop_reason": STOP_REASON[answer.finish], "stop_sequence": None}


def _usage(answer: Answer, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": answer.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
    }


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    message = answer.message
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": SIGNATURE})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
    return blocks


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it is opened, and what then fills it."""
    if block["type"] == "thinking":
        opened = {**block, "thinking": "", "signature": ""}
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return opened, [{"type": "thinking_delta", "thinking": block["thinking"]}, signed]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": stringify(block["input"])}]
