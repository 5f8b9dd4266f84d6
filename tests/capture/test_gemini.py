"""Google's own client in front of the capture process, a scripted engine behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
from bench import CALL, CONTEXT, SCHEMA, Bench, assert_exact_chain
from google import genai
from google.genai import errors, types

from clawexp.capture.awaited import PING_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

READ = {"name": "read", "description": "Read a file.", "parametersJsonSchema": SCHEMA}
OLD_SCHEMA = {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}, "required": ["path"]}
TOOLS: Any = [{"functionDeclarations": [READ]}]
SYSTEM = "You are an assistant with files."
TASK: Any = {"role": "user", "parts": [{"text": "Read the files and write what they say."}]}
CALLED = "/v1beta/models/tiny:generateContent"
Client = genai.client.AsyncClient
Live = Bench[Client]


@pytest.fixture(scope="module")
def connect() -> Callable[[str, str], AbstractAsyncContextManager[Client]]:
    @asynccontextmanager
    async def connected(url: str, key: str) -> AsyncIterator[Client]:
        # Its own choice is aiohttp, by a class that aiohttp warns of.
        async with httpx.AsyncClient() as http:
            options = types.HttpOptions(
                base_url=url, retry_options=types.HttpRetryOptions(attempts=1), httpx_async_client=http
            )
            with genai.Client(api_key=key, http_options=options) as client:
                yield client.aio

    return connected


async def ask(
    client: Client, contents: Sequence[Any], stream: bool = False, **config: Any
) -> list[types.GenerateContentResponse]:
    """The responses: one, or the events of a stream."""
    asked: Any = {"model": "tiny", "contents": list(contents), "config": {**NO_CALLS, **config}}
    if not stream:
        return [await client.models.generate_content(**asked)]
    return [response async for response in await client.models.generate_content_stream(**asked)]


NO_CALLS: dict[str, Any] = {"automaticFunctionCalling": {"disable": True}}
"""The client would run Python functions by itself."""


def parts(responses: Sequence[types.GenerateContentResponse]) -> list[types.Part]:
    found: list[types.Part] = []
    for response in responses:
        assert response.candidates
        content = response.candidates[0].content
        assert content is not None
        found += content.parts or []
    return found


def echo(responses: Sequence[types.GenerateContentResponse]) -> dict[str, Any]:
    """The answer as one content, as gemini-cli writes it back, with its mark for signatures that it lacks."""
    written = [part.model_dump(exclude_none=True, by_alias=True) for part in parts(responses)]
    written[-1]["thoughtSignature"] = "c2tpcA=="
    return {"role": "model", "parts": written}


def results(responses: Sequence[types.GenerateContentResponse], with_ids: bool = True) -> dict[str, Any]:
    calls = [part.function_call for part in parts(responses) if part.function_call]
    told = [
        {"name": call.name, "response": {"output": "fine"}, **({"id": call.id} if with_ids else {})} for call in calls
    ]
    return {"role": "user", "parts": [{"functionResponse": result} for result in told]}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_append_only_conversation_keeps_its_exact_prefix(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    contents: list[Any] = [TASK]
    for turn in range(4):
        bench.engine.say(f"<think>\nwhy {turn}\n</think>\n\nTurn {turn}.\n{CALL}{CALL}")
        answer = await ask(client, contents, stream, tools=TOOLS, systemInstruction=SYSTEM)
        thought, text, *calls = parts(answer)
        assert (thought.thought, thought.text, text.text) == (True, f"why {turn}", f"Turn {turn}.")
        assert [call.function_call.args for call in calls if call.function_call] == [
            {"path": "notes.txt", "lines": [1, 2]}
        ] * 2
        assert all(call.function_call and str(call.function_call.id).isalnum() for call in calls)
        contents += [echo(answer), results(answer)]
    calls = await bench.close(rollout_id)
    assert len(calls) == 4
    assert_exact_chain(calls)
    assert {(call.dialect, call.kind, call.verdict) for call in calls} == {("gemini", "main", "tool_calls")}


async def test_what_gemini_cli_drops_and_adds_does_not_fork(bench: Live) -> None:
    """Thoughts are gone from history, ids are missing, and a text comes in two parts."""
    rollout_id, client = await bench.open()
    bench.engine.say(f"<think>\nwhy\n</think>\n\nFine.{CALL}")
    answer = await ask(client, [TASK], True, tools=TOOLS)
    _, text, call = parts(answer)
    assert call.function_call is not None
    bare = {"functionCall": {"name": call.function_call.name, "args": call.function_call.args}}
    model = {"role": "model", "parts": [{"text": text.text}, bare]}
    task = {"parts": [{"text": "Read the files and "}, {"text": "write what they say."}]}
    await ask(client, [task, model, results(answer, with_ids=False)], True, tools=TOOLS)
    assert_exact_chain(await bench.close(rollout_id))


async def test_the_chat_of_the_official_client_keeps_the_prefix_streamed(bench: Live) -> None:
    rollout_id, client = await bench.open()
    config: Any = {**NO_CALLS, "tools": TOOLS}
    chat = client.chats.create(model="tiny", config=config)
    for turn in range(3):
        bench.engine.say(f"Turn {turn}.{CALL}")
        told: Any = "Begin." if not turn else [types.Part.from_function_response(name="read", response={"n": turn})]
        async for _ in await chat.send_message_stream(told):
            pass
    assert_exact_chain(await bench.close(rollout_id))


async def test_both_forms_of_schema_and_both_spellings_say_the_same_to_the_model(bench: Live) -> None:
    rollout_id, client = await bench.open()
    await ask(client, [TASK], tools=TOOLS, systemInstruction=SYSTEM)
    old = {"name": "read", "description": "Read a file.", "parameters": OLD_SCHEMA}
    body = {
        "system_instruction": {"parts": [{"text": SYSTEM}]},
        "contents": [TASK],
        "tools": [{"function_declarations": [old]}],
        "generation_config": {"max_output_tokens": 7},
    }
    status, _ = await bench.send(f"{CALLED}?key={bench.key}", json.dumps(body).encode())
    assert status == 200
    first, second = await bench.close(rollout_id)
    assert second.prompt_ids == first.prompt_ids
    assert second.submitted["max_tokens"] == 7


async def test_a_result_that_is_no_plain_output_is_told_whole(bench: Live) -> None:
    rollout_id, client = await bench.open()
    result = {"name": "read", "response": {"error": "no such file"}}
    called = {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]}
    await ask(client, [TASK, called, {"role": "user", "parts": [{"functionResponse": result}]}], tools=TOOLS)
    (call,) = await bench.close(rollout_id)
    assert '{"error":"no such file"}' in bench.engine.tokenizer.decode(list(call.prompt_ids))


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_true_and_so_is_the_count_before(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    before = await client.models.count_tokens(model="tiny", contents=[TASK])
    answer = await ask(client, [TASK], stream)
    (call,) = await bench.close(rollout_id)
    usage = answer[-1].usage_metadata
    assert usage is not None
    assert before.total_tokens == usage.prompt_token_count == len(call.prompt_ids)
    assert usage.candidates_token_count == len(call.sampled_ids)
    assert usage.total_token_count == len(call.prompt_ids) + len(call.sampled_ids)


async def test_finish_reasons_are_those_of_the_api(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("the weather is", stop=False)
    cut = await ask(client, [TASK])
    bench.engine.say(f"Text.{CALL}")
    called = await ask(client, [TASK], True, tools=TOOLS)
    reasons = [response.candidates[0].finish_reason for response in (*cut, *called) if response.candidates]
    assert reasons == [types.FinishReason.MAX_TOKENS, None, types.FinishReason.STOP]
    await bench.close(rollout_id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_beyond_the_context_is_refused_in_googles_words(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    with pytest.raises(errors.ClientError) as raised:
        await ask(client, [{"role": "user", "parts": [{"text": "q" * 5000}]}], stream)
    assert (raised.value.code, raised.value.status) == (400, "INVALID_ARGUMENT")
    assert str(raised.value.message).startswith("The input token count (")
    assert str(raised.value.message).endswith(f"exceeds the maximum number of tokens allowed ({CONTEXT}).")
    assert await bench.close(rollout_id) == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]},
            "'inlineData' is not supported",
        ),
        ({"contents": []}, "at least one content"),
        ({"contents": [{"role": "wizard", "parts": []}]}, "contents[0].role"),
        ({"tools": [{"googleSearch": {}}]}, "only functions are offered"),
        ({"tools": [{"functionDeclarations": [{"description": "?"}]}]}, "must have a name"),
        ({"generationConfig": {"temperature": "hot"}}, "temperature: must be a number"),
    ],
)
async def test_what_cannot_be_said_to_the_model_is_refused_clearly(
    bench: Live, changes: dict[str, Any], told: str
) -> None:
    rollout_id, _ = await bench.open()
    body = json.dumps({"contents": [TASK], **changes}).encode()
    status, answer = await bench.send(CALLED, body, x_goog_api_key=bench.key)
    assert (status, answer["error"]["code"], answer["error"]["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert told in answer["error"]["message"]
    assert await bench.close(rollout_id) == ()


async def test_an_unknown_key_is_refused_and_so_is_a_stream_that_is_none(bench: Live) -> None:
    rollout_id, _ = await bench.open()
    with pytest.raises(errors.ClientError) as raised:
        await ask(await bench.client("wrong"), [TASK])
    assert (raised.value.code, raised.value.status) == (401, "UNAUTHENTICATED")
    body = json.dumps({"contents": [TASK]}).encode()
    status, answer = await bench.send("/v1beta/models/tiny:streamGenerateContent", body, x_goog_api_key=bench.key)
    assert (status, "alt=sse" in answer["error"]["message"]) == (400, True)
    assert await bench.close(rollout_id) == ()


async def test_the_experiment_decides_sampling_and_notes_what_the_harness_wanted(bench: Live) -> None:
    rollout_id, client = await bench.open()
    wanted = {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "stopSequences": ["x"],
        "responseMimeType": "application/json",
    }
    await ask(client, [TASK], tools=TOOLS, toolConfig={"functionCallingConfig": {"mode": "ANY"}}, **wanted)
    await ask(
        client, [TASK], tools=[*TOOLS, {"googleSearch": {}}], toolConfig={"functionCallingConfig": {"mode": "AUTO"}}
    )
    first, second = await bench.close(rollout_id)
    assert {edit.rule for edit in first.edits} == {
        f"sampling.{name}" for name in ("top_p", "top_k", "stop_sequences", "response_format", "tool_choice")
    }
    assert [(edit.rule, edit.before) for edit in second.edits] == [("tools.server", {"googleSearch": {}})]


async def test_models_are_told_in_the_form_that_the_client_speaks(bench: Live) -> None:
    rollout_id, client = await bench.open()
    listed = [model.name async for model in await client.models.list(config={"query_base": True})]
    assert listed == ["models/tiny"]
    assert (await client.models.get(model="tiny")).name == "models/tiny"
    with pytest.raises(errors.ClientError) as raised:
        await client.models.get(model="other")
    assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")
    assert await bench.close(rollout_id) == ()


async def test_the_official_client_waits_through_what_keeps_a_stream_alive(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.release = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asking = group.create_task(ask(client, [TASK], True))
        await bench.engine.arrived.acquire()
        await asyncio.sleep(PING_S + 1)
        bench.engine.release.set()
    assert [part.text for part in parts(asking.result())] == ["ok"]
    assert len(await bench.close(rollout_id)) == 1


async def test_an_engine_that_stays_down_ends_a_stream_that_has_begun_with_an_error(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.release = asyncio.Event()
    for _ in range(2):
        bench.engine.say("three words here", logprobs={"content": []})
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asking = group.create_task(failure(client))
        await bench.engine.arrived.acquire()
        await asyncio.sleep(PING_S + 1)
        bench.engine.release.set()
    assert (asking.result().code, asking.result().status) == (503, "UNAVAILABLE")
    assert (await bench.boundary.close(rollout_id)).calls == ()


async def failure(client: Client) -> errors.APIError:
    with pytest.raises(errors.ServerError) as raised:
        await ask(client, [TASK], True)
    return raised.value
