"""What no harness should send, in every dialect: it is told so in the dialect's own words, and nothing else happens."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from bench import Bench, undisturbed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.dialects.fields import MOST_VALUES
from clawexp.capture.dialects.table import DIALECTS, dialect_of
from clawexp.capture.history import History
from clawexp.capture.message import Refused, Reply
from clawexp.capture.rendering import Qwen3Rendering, Rendering
from clawexp.capture.sampling import decide
from clawexp.capture.template import TemplateRendering
from clawexp.capture.tokenizer import Tokenizer

SAY = "Read the files."
CALLED = {"path": "a", "n": [1, 2.5, None]}
VALID: dict[str, tuple[str, dict[str, Any]]] = {
    "openai_chat": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": SAY}]},
                {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "read", "arguments": json.dumps(CALLED)}}]},
                {"role": "tool", "tool_call_id": "c", "content": "x = 4"},
            ],
            "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
            "tool_choice": "auto", "temperature": 1, "max_tokens": 9, "stream": False,
            "stream_options": {"include_usage": True},
        },
    ),
    "anthropic_messages": (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "You read."}],
            "messages": [
                {"role": "user", "content": SAY},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
                                                  {"type": "tool_use", "id": "c", "name": "read", "input": CALLED}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x = 4"}]},
            ],
            "tools": [{"name": "read", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"}, "temperature": 1, "max_tokens": 9, "stream": False,
        },
    ),
    "openai_responses": (
        "/v1/responses",
        {
            "instructions": "You read.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": SAY}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
                {"type": "function_call", "call_id": "c", "name": "read", "arguments": json.dumps(CALLED)},
                {"type": "function_call_output", "call_id": "c", "output": "x = 4"},
                {"type": "custom_tool_call", "call_id": "d", "name": "apply", "input": "+ x"},
            ],
            "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}},
                      {"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "apply"}]}],
            "tool_choice": "auto", "temperature": 1, "max_output_tokens": 9, "stream": False,
            "text": {"format": {"type": "text"}},
        },
    ),
    "gemini": (
        "/v1beta/models/tiny:generateContent",
        {
            "systemInstruction": {"parts": [{"text": "You read."}]},
            "contents": [
                {"role": "user", "parts": [{"text": SAY}]},
                {"role": "model", "parts": [{"text": "hm", "thought": True},
                                            {"functionCall": {"id": "c", "name": "read", "args": CALLED}}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "x = 4"}}}]},
            ],
            "tools": [{"functionDeclarations": [{"name": "read", "parameters": {"type": "OBJECT"}}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
            "generationConfig": {"temperature": 1, "topP": 1, "maxOutputTokens": 9},
        },
    ),
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
each_dialect = pytest.mark.parametrize("name", list(VALID))


@pytest.fixture(scope="module")
def connect() -> Callable[[str, str], AbstractAsyncContextManager[None]]:
    return lambda url, key: nullcontext()


def asked(path: str, **headers: str) -> Asked:
    return Asked(method="POST", path=path, query={}, headers=headers)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a body, the body itself left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [((*at, key), item) for key, item in inner]
    return [place for place, _ in found] + [deeper for place, item in found for deeper in places(item, place)]


def changed(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The body with another value at a place; without the place where the value is `places`."""
    copied = json.loads(json.dumps(body))
    holder = copied
    for key in place[:-1]:
        holder = holder[key]
    if value is places:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return copied


@pytest.fixture(scope="module")
def renderings(qwen3: Qwen3Rendering, tokenizer: Tokenizer, checkpoint: Path) -> tuple[Rendering, ...]:
    return qwen3, TemplateRendering(tokenizer, checkpoint)


@each_dialect
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_body_that_is_wrong_somewhere_is_read_or_refused(
    renderings: Sequence[Rendering], name: str, data: st.DataObject
) -> None:
    path, body = VALID[name]
    value = data.draw(st.just(places) | JSON)
    wrong = changed(body, data.draw(st.sampled_from(places(body))), value)
    dialect = next(each for each in DIALECTS if each.serves(asked(path)))
    assert dialect.name == name
    try:
        request = dialect.read(asked(path), json.dumps(wrong).encode())
    except Refused as refused:
        check_told(name, dialect.refuse(refused, stream=False))
        return
    # What is read can be compared, rendered and sampled.
    History().view(request)
    decide(request, 1.0, 100)
    for rendering in renderings:
        try:
            assert rendering.render(request.messages, request.tools)
        except Refused as refused:
            check_told(name, dialect.refuse(refused, stream=False))


@each_dialect
@settings(max_examples=50, deadline=None)
@given(body=st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_body_that_is_nothing_like_it_is_refused(name: str, body: bytes) -> None:
    path, _ = VALID[name]
    dialect = next(each for each in DIALECTS if each.serves(asked(path)))
    with pytest.raises(Refused):
        dialect.read(asked(path), body)


@each_dialect
def test_a_field_that_nobody_knows_changes_nothing(name: str) -> None:
    path, body = VALID[name]
    dialect = next(each for each in DIALECTS if each.serves(asked(path)))
    known = dialect.read(asked(path), json.dumps(body).encode())
    assert dialect.read(asked(path), json.dumps({**body, "wizardry": {"a": [1]}}).encode()) == known


NAN = b'{"messages": [], "contents": [], "input": "x", "temperature": NaN}'
DEEP = b'{"messages": %s, "contents": %s, "input": %s}' % ((b'[{"a":' * 400 + b"1" + b"}]" * 400,) * 3)
TEXT = "text/plain"


@pytest.mark.asyncio(loop_scope="module")
@each_dialect
async def test_the_process_says_so_in_the_dialect_and_goes_on(bench: Bench[None], name: str) -> None:
    path, body = VALID[name]
    rollout_id, _ = await bench.open()
    credential = {"authorization": f"Bearer {bench.key}"}
    valid = json.dumps(body).encode()
    nested = changed(body, ("tools", 0), {**body["tools"][0], "deep": json.loads(b"[" * 450 + b"]" * 450)})
    bad = [b"", b"{", b"[]", b"null", b"[" * 100_000, NAN, DEEP, b"\xff\xfe\xfa", valid.replace(b"files", b"fil\xffs")]
    async with undisturbed(bench):
        for sent in bad:
            status, answer = await bench.send(path, sent, **credential)
            assert (status, told(name, answer)) == (400, True), sent[:60]
        assert (await bench.send(path, valid, **credential, content_type=TEXT))[0] == 400
        status, answer = await bench.send(path, b" " * (50 * 2**20) + valid, **credential)
        assert (status, told(name, answer)) == (413, True)
        assert (await bench.send(path, json.dumps(nested).encode(), **credential))[0] in (200, 400)
        assert (await bench.send(path, valid, **credential, content_type="application/json; charset=utf-8"))[0] == 200
    closed = await bench.boundary.close(rollout_id)
    assert closed.counts["capture_faults"] == 0


UNKNOWN: dict[str, list[tuple[str, dict[str, str]]]] = {
    "anthropic_messages": [
        ("/v1/messages/batches", {}),
        ("/v1/files", {"anthropic-version": "2023-06-01"}),
        ("/v1/complete", {"x-api-key": "sk"}),
        ("/api/settings", {"host": "api.anthropic.com"}),
    ],
    "gemini": [
        ("/v1beta/models/tiny:embedContent", {}),
        ("/v1beta/cachedContents", {}),
        ("/v1/files", {"x-goog-api-key": "sk"}),
        ("/v1internal", {"host": "generativelanguage.googleapis.com"}),
    ],
    "openai_chat": [("/v1/embeddings", {}), ("/", {}), ("/v1/chat/completions/1", {}), ("/v1/messagesque", {"x": ""})],
}


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_what_nobody_serves_is_refused_in_the_words_that_its_client_reads(name: str) -> None:
    for path, headers in UNKNOWN[name]:
        dialect, served = dialect_of(asked(path, **headers))
        assert not served
        reply = dialect.refuse(Refused("not_found", "?"), stream=False)
        assert (reply.status, told(name, json.loads(reply.body))) == (404, True), path


def test_a_body_is_read_twice_for_half_a_character_alone() -> None:
    body = b'{"messages": [{"role": "user", "content": "%s"}], "more": [%s 1]}'
    chat, path = DIALECTS[-1], VALID["openai_chat"][0]
    assert chat.read(asked(path), body % (b"cut \\ud83d", b"")).messages[0].content == "cut \ud83d"
    for bad, why in ((b"1 2", "JSON"), (b"\\ud83d", "values")):
        with pytest.raises(Refused, match=why):
            chat.read(asked(path), body % (bad, b"," if why == "JSON" else b"1," * MOST_VALUES))


def check_told(name: str, reply: Reply) -> None:
    assert reply.status == 400
    assert told(name, json.loads(reply.body))


def told(name: str, answer: Any) -> bool:
    """Whether an answer is an error in the dialect's form."""
    error = answer["error"]
    match name:
        case "anthropic_messages":
            return answer["type"] == "error" and set(error) == {"type", "message"}
        case "gemini":
            return set(error) == {"code", "message", "status"}
        case _:
            return set(error) == {"message", "type", "param", "code"}
