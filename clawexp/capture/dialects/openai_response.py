"""An answer -> OpenAI's response object, whole or as the events of a stream."""

from collections.abc import Iterator, Mapping
from typing import Any

from clawexp.capture.dialects.openai_items import NAMESPACE
from clawexp.capture.meaning import arguments_text
from clawexp.capture.message import Answer, Request, ToolCall

SEALED = "bm90IGVuY3J5cHRlZA=="
"""Stands where the API keeps reasoning that only it can read; clients hand it back and do not look inside."""

Event = dict[str, Any]


def whole(request: Request, answer: Answer, model: str) -> dict[str, Any]:
    """The response as one object."""
    cut = answer.finish == "length"
    return {
        **_head(f"resp_{answer.id}", answer.created, model),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(request, answer),
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
        },
    }


def events(request: Request, answer: Answer, model: str) -> Iterator[Event]:
    """The response as events, numbered: each item is added, filled and done, and only then the response ends."""
    response = whole(request, answer, model)
    begun = _head(response["id"], answer.created, model)
    told = [_told("response.created", begun), _told("response.in_progress", begun)]
    for index, item in enumerate(response["output"]):
        told += [{**event, "output_index": index} for event in _item_events(item)]
    told.append(_told(f"response.{response['status']}", response))
    return _numbered(told)


def failed(error: Mapping[str, Any]) -> Iterator[Event]:
    """A stream that ends with an error. The official client looks for the event, Codex into the response."""
    begun = _head("resp_failed", 0, "")
    response = {**begun, "status": "failed", "error": {"code": error["code"], "message": error["message"]}}
    told = [
        _told("response.created", begun),
        {"type": "error", "error": dict(error)},
        _told("response.failed", response),
    ]
    return _numbered(told)


def _told(kind: str, response: Mapping[str, Any]) -> Event:
    return {"type": kind, "response": dict(response)}


def _numbered(told: list[Event]) -> Iterator[Event]:
    return ({**event, "sequence_number": number} for number, event in enumerate(told))


def _head(response_id: str, created: int, model: str) -> dict[str, Any]:
    """A response that has only begun."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": None,
    }


def _items(request: Request, answer: Answer) -> list[dict[str, Any]]:
    message, items = answer.message, []
    if message.reasoning:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{answer.id}", "summary": summary, "encrypted_content": SEALED})
    if message.content:
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        head = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant"}
        items.append({**head, "status": "completed", "content": [part]})
    return items + [_call(request, call) for call in message.tool_calls]


def _call(request: Request, call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments
    if call.name in request.freeform and isinstance(arguments, dict) and isinstance(arguments.get("input"), str):
        head = {"type": "custom_tool_call", "id": f"ctc_{call.id}", "call_id": call.id}
        return {**head, "status": "completed", "name": call.name, "input": arguments["input"]}
    group, _, name = call.name.rpartition(NAMESPACE)
    grouped = {"namespace": group} if group else {}
    head = {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "status": "completed"}
    return {**head, "name": name, **grouped, "arguments": arguments_text(call)}


def _item_events(item: Mapping[str, Any]) -> Iterator[Event]:
    """Added empty, filled, done."""
    match item["type"]:
        case "reasoning":
            empty, filled = {"summary": []}, _summary_events(item)
        case "message":
            empty, filled = {"content": [], "status": "in_progress"}, _text_events(item)
        case "custom_tool_call":
            empty, filled = {"input": "", "status": "in_progress"}, _filled(item, "custom_tool_call_input", "input")
        case _:
            empty = {"arguments": "", "status": "in_progress"}
            filled = _filled(item, "function_call_arguments", "arguments")
    yield {"type": "response.output_item.added", "item": {**item, **empty}}
    yield from filled
    yield {"type": "response.output_item.done", "item": dict(item)}


def _summary_events(item: Mapping[str, Any]) -> Iterator[Event]:
    (part,) = item["summary"]
    at = {"item_id": item["id"], "summary_index": 0}
    yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
    yield {"type": "response.reasoning_summary_text.delta", **at, "delta": part["text"]}
    yield {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]}
    yield {"type": "response.reasoning_summary_part.done", **at, "part": part}


def _text_events(item: Mapping[str, Any]) -> Iterator[Event]:
    (part,) = item["content"]
    at = {"item_id": item["id"], "content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}


def _filled(item: Mapping[str, Any], kind: str, field: str) -> Iterator[Event]:
    yield {"type": f"response.{kind}.delta", "item_id": item["id"], "delta": item[field]}
    named = {"name": item["name"]} if field == "arguments" else {}
    yield {"type": f"response.{kind}.done", "item_id": item["id"], **named, field: item[field]}
