"""Gemini: `POST /v1beta/models/NAME:generateContent`, `:streamGenerateContent?alt=sse` and `:countTokens`, and
`GET /v1beta/models`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from clawexp.capture.dialects.dialect import Asked, meant_for
from clawexp.capture.dialects.fields import read_object, shaping, token_limit
from clawexp.capture.dialects.gemini_contents import camel, read_contents, read_tools
from clawexp.capture.dialects.headers import bearer
from clawexp.capture.dialects.models import about_models
from clawexp.capture.dialects.reply import encoded, json_reply, refusal, stream_reply, unnamed
from clawexp.capture.message import Answer, Finish, RefusalKind, Refused, Reply, Request, TooLong

MODELS = "/v1beta/models"
VERSIONS = ("/v1beta/", "/v1alpha/", "/upload/v1beta/")
"""Begin paths that only Google has."""
CALL = re.compile(r"/v1(?:beta|alpha)?/models/[^:]+:(generateContent|streamGenerateContent|countTokens)")
METHODS = ("generateContent", "streamGenerateContent", "countTokens")
SHAPING = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "stopSequences": "stop_sequences",
    "candidateCount": "n",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "seed": "seed",
    "maxOutputTokens": "max_tokens",
}
FORMS = ("responseSchema", "responseJsonSchema", "responseMimeType")
PLAIN = (None, "text/plain")
FINISH: Mapping[Finish, str] = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}
ERRORS: Mapping[RefusalKind, tuple[int, str]] = {
    "unknown_key": (401, "UNAUTHENTICATED"),
    "not_found": (404, "NOT_FOUND"),
    "no_websocket": (426, "FAILED_PRECONDITION"),
    "too_large": (413, "INVALID_ARGUMENT"),
    "invalid_request": (400, "INVALID_ARGUMENT"),
    "context_length": (400, "INVALID_ARGUMENT"),
    "unavailable": (503, "UNAVAILABLE"),
}


class Gemini:
    """The dialect of Google's Gemini API."""

    name = "gemini"
    vendor = "https://generativelanguage.googleapis.com"
    ping = b"\n\n"
    """An empty line: Google's clients take a comment for JSON."""

    def serves(self, asked: Asked) -> bool:
        if asked.method == "POST":
            return CALL.fullmatch(asked.path) is not None
        return asked.method == "GET" and (asked.path == MODELS or asked.path.startswith(f"{MODELS}/"))

    def resembles(self, asked: Asked) -> bool:
        named = "x-goog-api-key" in asked.headers or "x-goog-api-client" in asked.headers
        return named or asked.path.startswith(VERSIONS) or meant_for(asked, self.vendor)

    def key(self, asked: Asked) -> str:
        return asked.headers.get("x-goog-api-key") or asked.query.get("key") or bearer(asked.headers)

    def retried(self, asked: Asked) -> bool:
        return False

    def about(self, asked: Asked, model: str) -> Reply | None:
        if asked.method == "POST":
            return None
        entry = {"name": f"models/{model}", "displayName": model, "supportedGenerationMethods": list(METHODS)}
        name = asked.path[len(MODELS) + 1 :]
        missing = f"models/{name} is not found for API version v1beta."
        return about_models(name, model, entry, {"models": [entry]}, missing)

    def counts(self, asked: Asked) -> bool:
        return asked.path.endswith(":countTokens")

    def count(self, tokens: int) -> Reply:
        return json_reply({"totalTokens": tokens})

    def read(self, asked: Asked, body: bytes) -> Request:
        content = camel(read_object(asked.headers, body), "request")
        if self.counts(asked) and "generateContentRequest" in content:
            content = camel(content["generateContentRequest"], "generateContentRequest")
        stream = asked.path.endswith(":streamGenerateContent")
        if stream and asked.query.get("alt") != "sse":
            raise Refused("invalid_request", "Streams are server-sent events: ask with alt=sse.")
        tools, edits = read_tools(content.get("tools"))
        config = camel(content.get("generationConfig"), "generationConfig")
        return Request(
            messages=read_contents(content.get("systemInstruction"), content.get("contents")),
            tools=tools,
            requested=_requested(content, config),
            max_tokens=token_limit(config.get("maxOutputTokens"), "maxOutputTokens"),
            stream=stream,
            stream_usage=True,
            edits=edits,
        )

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        if request.stream:
            return stream_reply(unnamed(_chunks(answer, model)))
        return json_reply(_response(_parts(answer), answer, model, FINISH[answer.finish]))

    def refuse(self, refused: Refused, *, stream: bool) -> Reply:
        status, name = ERRORS[refused.kind]
        error = {"error": {"code": status, "message": _reason(refused), "status": name}}
        # As Google sends it, and its clients look for it: no event, the bare object on a line.
        return refusal(refused.kind, status, error, encoded(error) + b"\n\n")


def _requested(content: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What would shape sampling, by the names that the other dialects have for it."""
    requested = shaping(config, SHAPING)
    forms = {name: config[name] for name in FORMS if config.get(name) not in PLAIN}
    if forms:
        requested["response_format"] = forms
    choice = camel(camel(content.get("toolConfig"), "toolConfig").get("functionCallingConfig"), "functionCallingConfig")
    if choice:
        requested["tool_choice"] = "auto" if choice.get("mode") in (None, "AUTO") else dict(choice)
    return requested


def _parts(answer: Answer) -> list[dict[str, Any]]:
    message, parts = answer.message, []
    if message.reasoning:
        parts.append({"text": message.reasoning, "thought": True})
    if message.content:
        parts.append({"text": message.content})
    for call in message.tool_calls:
        parts.append({"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}})
    return parts


def _chunks(answer: Answer, model: str) -> Iterator[dict[str, Any]]:
    """Part after part; the last one brings the end."""
    *first, last = _parts(answer)
    for part in first:
        yield _response([part], answer, model, None)
    yield _response([last], answer, model, FINISH[answer.finish])


def _response(parts: list[dict[str, Any]], answer: Answer, model: str, finish: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    response: dict[str, Any] = {"candidates": [candidate], "modelVersion": model, "responseId": answer.id}
    if finish is not None:
        candidate["finishReason"] = finish
        response["usageMetadata"] = {
            "promptTokenCount": answer.prompt_tokens,
            "candidatesTokenCount": answer.sampled_tokens,
            "totalTokenCount": answer.prompt_tokens + answer.sampled_tokens,
        }
    return response


def _reason(refused: Refused) -> str:
    if not isinstance(refused, TooLong):
        return str(refused)
    return (
        f"The input token count ({refused.prompt_tokens}) exceeds the maximum number of tokens allowed "
        f"({refused.context})."
    )
