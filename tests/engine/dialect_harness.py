"""A harness in a few lines for each dialect: it keeps all that is said, and asks to go on until it hears "Done."."""

import json
from typing import Any

import aiohttp
from played import TOOLS

Called = tuple[str, dict[str, Any]]
FUNCTIONS: list[dict[str, Any]] = [tool["function"] for tool in TOOLS]
LONGEST = 60
"""Turns; that many mean that the conversation does not end."""


class Chat:
    """OpenAI chat completions."""

    path = "/v1/chat/completions"

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self._session, self._url = session, url
        self._headers = {"authorization": f"Bearer {key}", "x-api-key": key, "x-goog-api-key": key}
        self.history: list[Any] = []

    async def converse(self, task: str) -> list[Called]:
        """The tool calls that were made, in order. No answer may have another status than 200."""
        self.say(task)
        made: list[Called] = []
        for _ in range(LONGEST):
            async with self._session.post(self._url + self.path, json=self.body(), headers=self._headers) as got:
                answer = await got.json()
                assert got.status == 200, answer
            text, calls = self.take(answer)
            made += calls
            if not calls and text == "Done.":
                return made
            if not calls:
                self.say("Go on.")
        raise AssertionError(f"no end in sight: {made}")

    def body(self) -> dict[str, Any]:
        return {"model": "m", "messages": self.history, "tools": list(TOOLS)}

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def take(self, answer: Any) -> tuple[str, list[Called]]:
        """Note the answer and what its calls gave: its text, and the calls."""
        message = answer["choices"][0]["message"]
        self.history.append(message)
        calls = message.get("tool_calls") or []
        self.history += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
        functions = [call["function"] for call in calls]
        return message["content"] or "", [(each["name"], json.loads(each["arguments"])) for each in functions]


class Messages(Chat):
    """Anthropic messages."""

    path = "/v1/messages"

    def body(self) -> dict[str, Any]:
        tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS]
        return {"model": "m", "max_tokens": 512, "messages": self.history, "tools": tools}

    def take(self, answer: Any) -> tuple[str, list[Called]]:
        blocks = answer["content"]
        self.history.append({"role": "assistant", "content": blocks})
        calls = [block for block in blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "ok"} for call in calls]
        if results:
            self.history.append({"role": "user", "content": results})
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        return "".join(texts), [(call["name"], call["input"]) for call in calls]


class Responses(Chat):
    """OpenAI responses."""

    path = "/v1/responses"

    def body(self) -> dict[str, Any]:
        return {"model": "m", "input": self.history, "tools": [{"type": "function", **each} for each in FUNCTIONS]}

    def take(self, answer: Any) -> tuple[str, list[Called]]:
        items = answer["output"]
        calls = [item for item in items if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in calls]
        self.history += [*items, *results]
        parts = [part for item in items if item["type"] == "message" for part in item["content"]]
        text = "".join(part["text"] for part in parts)
        return text, [(call["name"], json.loads(call["arguments"])) for call in calls]


class Gemini(Chat):
    """Gemini generateContent."""

    path = "/v1beta/models/m:generateContent"

    def body(self) -> dict[str, Any]:
        return {"contents": self.history, "tools": [{"functionDeclarations": FUNCTIONS}]}

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "parts": [{"text": text}]})

    def take(self, answer: Any) -> tuple[str, list[Called]]:
        content = answer["candidates"][0]["content"]
        self.history.append(content)
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [{"functionResponse": {"name": call["name"], "response": {"output": "ok"}}} for call in calls]
        if results:
            self.history.append({"role": "user", "parts": results})
        text = "".join(part.get("text", "") for part in content["parts"])
        return text, [(call["name"], call["args"]) for call in calls]


DIALECTS = {"openai_chat": Chat, "anthropic_messages": Messages, "openai_responses": Responses, "gemini": Gemini}
