"""A harness's side of four dialects: its requests, and what it makes of the answers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from load.checkpoint import SYSTEM, TOOLS
from load.stub import MODEL

ANTHROPIC_MODEL = f"{MODEL}-anthropic"
"""LiteLLM finds the stub's route by the name of the model; nobody else looks at it."""
MAX_TOKENS = 1024
Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Told:
    """One answer."""

    text: str
    items: Sequence[Item]
    """The answer as it stands in the history of later requests."""
    calls: Sequence[Any]
    """Ids of the tool calls; Gemini's have names instead."""


class Dialect(Protocol):
    """Stateless; a conversation is a list of its items."""

    name: str

    def path(self, stream: bool) -> str: ...

    def headers(self, key: str) -> dict[str, str]: ...

    def user(self, text: str) -> Item: ...

    def body(self, history: Sequence[Item], stream: bool) -> Item: ...

    def read(self, content: bytes, stream: bool) -> Told: ...

    def result(self, call: Any, text: str) -> Item: ...


class Chat:
    """OpenAI chat completions."""

    name = "chat"

    def path(self, stream: bool) -> str:
        return "/v1/chat/completions"

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def user(self, text: str) -> Item:
        return {"role": "user", "content": text}

    def body(self, history: Sequence[Item], stream: bool) -> Item:
        messages = [{"role": "system", "content": SYSTEM}, *history]
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        body = {"model": MODEL, "messages": messages, "tools": tools, "max_tokens": MAX_TOKENS, "stream": stream}
        return {**body, "stream_options": {"include_usage": True}} if stream else body

    def read(self, content: bytes, stream: bool) -> Told:
        message = self._joined(content) if stream else json.loads(content)["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        item = {"role": "assistant", "content": message["content"], "tool_calls": calls}
        return Told(text=message["content"], items=[item], calls=[call["id"] for call in calls])

    def _joined(self, content: bytes) -> Item:
        text, calls = "", []
        for event in events(content):
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                calls += choice["delta"].get("tool_calls") or []
        return {"content": text, "tool_calls": [{k: v for k, v in call.items() if k != "index"} for call in calls]}

    def result(self, call: Any, text: str) -> Item:
        return {"role": "tool", "tool_call_id": call, "content": text}


class Messages:
    """Anthropic messages."""

    name = "anthropic"

    def path(self, stream: bool) -> str:
        return "/v1/messages"

    def headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def user(self, text: str) -> Item:
        return {"role": "user", "content": text}

    def body(self, history: Sequence[Item], stream: bool) -> Item:
        tools = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in TOOLS
        ]
        system = [{"type": "text", "text": SYSTEM}]
        body = {"model": ANTHROPIC_MODEL, "system": system, "messages": list(history), "tools": tools}
        return {**body, "max_tokens": MAX_TOKENS, "stream": stream}

    def read(self, content: bytes, stream: bool) -> Told:
        blocks = self._joined(content) if stream else json.loads(content)["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return Told(text=text, items=[{"role": "assistant", "content": blocks}], calls=calls)

    def _joined(self, content: bytes) -> list[Item]:
        blocks: list[Item] = []
        for event in events(content):
            match event["type"]:
                case "content_block_start":
                    blocks.append({**event["content_block"], "partial": ""})
                case "content_block_delta":
                    delta = event["delta"]
                    blocks[-1]["partial"] += delta.get("text", "") or delta.get("partial_json", "")
        for block in blocks:
            partial = block.pop("partial")
            if block["type"] == "text":
                block["text"] = partial
            else:
                block["input"] = json.loads(partial or "{}")
        return blocks

    def result(self, call: Any, text: str) -> Item:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]}


class Responses:
    """OpenAI responses."""

    name = "responses"

    def path(self, stream: bool) -> str:
        return "/v1/responses"

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def user(self, text: str) -> Item:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    def body(self, history: Sequence[Item], stream: bool) -> Item:
        tools = [{"type": "function", **tool} for tool in TOOLS]
        body = {"model": MODEL, "instructions": SYSTEM, "input": list(history), "tools": tools}
        return {**body, "max_output_tokens": MAX_TOKENS, "store": False, "stream": stream}

    def read(self, content: bytes, stream: bool) -> Told:
        response = json.loads(content) if not stream else [*events(content)][-1]["response"]
        items = response["output"]
        texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
        calls = [item["call_id"] for item in items if item["type"] == "function_call"]
        return Told(text="".join(texts), items=items, calls=calls)

    def result(self, call: Any, text: str) -> Item:
        return {"type": "function_call_output", "call_id": call, "output": text}


class Gemini:
    """Gemini generateContent."""

    name = "gemini"

    def path(self, stream: bool) -> str:
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/v1beta/models/{MODEL}:{method}"

    def headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def user(self, text: str) -> Item:
        return {"role": "user", "parts": [{"text": text}]}

    def body(self, history: Sequence[Item], stream: bool) -> Item:
        return {
            "systemInstruction": {"parts": [{"text": SYSTEM}]},
            "contents": list(history),
            "tools": [{"functionDeclarations": TOOLS}],
            "generationConfig": {"maxOutputTokens": MAX_TOKENS},
        }

    def read(self, content: bytes, stream: bool) -> Told:
        whole = events(content) if stream else [json.loads(content)]
        parts = [part for event in whole for part in event["candidates"][0]["content"]["parts"]]
        calls = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
        text = "".join(part.get("text", "") for part in parts)
        return Told(text=text, items=[{"role": "model", "parts": parts}], calls=calls)

    def result(self, call: Any, text: str) -> Item:
        return {"role": "user", "parts": [{"functionResponse": {"name": call, "response": {"output": text}}}]}


DIALECTS: tuple[Dialect, ...] = (Chat(), Messages(), Responses(), Gemini())


def events(content: bytes) -> Iterator[Any]:
    """The data of a stream's events."""
    for line in content.splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])
