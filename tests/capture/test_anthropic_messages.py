"""Anthropic's own client in front of the capture process, a scripted engine behind it."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import anthropic
import pytest
from bench import CALL, SCHEMA, Bench, assert_exact_chain

from clawexp.capture.awaited import PING_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS: Any = [
    {
        "name": "read",
        "description": "Read a file.",
        "input_schema": SCHEMA,
    }
]
SYSTEM: Any = [{"type": "text", "text": "You are an assistant"}, {"type": "text", "text": " with files."}]
TASK: Any = {"role": "user", "content": "Read the files and write what they say."}
CACHED = {"type": "ephemeral"}


Live = Bench[anthropic.AsyncAnthropic]


@pytest.fixture(scope="module")
def connect() -> Callable[[str, str], anthropic.AsyncAnthropic]:
    return lambda url, key: anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)


async def ask(
    client: anthropic.AsyncAnthropic, messages: Sequence[Any], stream: bool = False, **options: Any
) -> anthropic.types.Message:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 256, "messages": list(messages), **options}
    if not stream:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as events:
        return await events.get_final_message()


def echo(message: anthropic.types.Message) -> dict[str, Any]:
    """The answer as a client writes it back."""
    content = [block.model_dump(exclude_none=True) for block in message.content]
    return {"role": "assistant", "content": content}


def results(message: anthropic.types.Message, text: Any = "weather is fine", **more: Any) -> dict[str, Any]:
    blocks = [
        {"type": "tool_result", "tool_use_id": block.id, "content": text, **more}
        for block in message.content
        if block.type == "tool_use"
    ]
    return {"role": "user", "content": blocks}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_append_only_conversation_keeps_its_exact_prefix(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    messages: list[Any] = [TASK]
    for turn in range(5):
        bench.engine.say(f"Turn {turn}.\n{CALL}{CALL}")
        message = await ask(client, messages, stream, tools=TOOLS, system=SYSTEM)
        assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
        assert message.content[1].type == "tool_use"
        assert message.content[1].input == {"path": "notes.txt", "lines": [1, 2]}
        assert message.stop_reason == "tool_use"
        messages += [echo(message), results(message)]
    calls = await bench.close(rollout_id)
    assert len(calls) == 5
    assert_exact_chain(calls)
    assert {(call.dialect, call.kind, call.verdict) for call in calls} == {("anthropic_messages", "main", "tool_calls")}


async def test_both_dialects_say_the_same_to_the_model(bench: Live) -> None:
    rollout_id, client = await bench.open()
    await ask(client, [TASK], tools=TOOLS, system=SYSTEM)
    function = {"name": "read", "description": "Read a file.", "parameters": TOOLS[0]["input_schema"]}
    body = {
        "messages": [{"role": "system", "content": "You are an assistant with files."}, TASK],
        "tools": [{"type": "function", "function": function}],
    }
    url = f"{bench.url}/v1/chat/completions"
    headers = {"authorization": f"Bearer {client.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as response:
        assert response.status == 200
    first, second = await bench.close(rollout_id)
    assert second.prompt_ids == first.prompt_ids
    assert second.cause == "retry"


async def test_what_claude_code_moves_about_does_not_fork(bench: Live) -> None:
    """Cache marks, billing lines, strings that become blocks, and system messages in the middle."""
    rollout_id, client = await bench.open()

    def system(build: str) -> Any:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{build};"}
        return [billing, {"type": "text", "text": "You are an assistant.", "cache_control": CACHED}]

    environment = {"role": "system", "content": "It is Sunday."}
    marked = {"role": "system", "content": [{"type": "text", "text": "It is Sunday.", "cache_control": CACHED}]}
    bench.engine.say(CALL)
    first = await ask(client, [TASK, marked], True, system=system("4e6"), tools=TOOLS)
    told = [TASK, environment, echo(first), results(first, "fine", cache_control=CACHED)]
    bench.engine.say(CALL)
    second = await ask(client, told, True, system=system("0a1"), tools=TOOLS)
    parts = [{"type": "text", "text": "fine"}]
    nudge = {"role": "system", "content": "<total_tokens>900 left</total_tokens>"}
    told = [TASK, environment, echo(first), results(first, parts), echo(second), results(second), nudge]
    await ask(client, told, True, system=system("77f"), tools=[{**TOOLS[0], "cache_control": CACHED}])
    calls = await bench.close(rollout_id)
    assert_exact_chain(calls)
    assert [edit.rule for edit in calls[0].edits] == ["system.billing"]


async def test_a_deferred_tool_comes_into_the_prompt_where_a_result_refers_to_it(bench: Live) -> None:
    rollout_id, client = await bench.open()
    write = {"name": "write", "input_schema": {"type": "object", "title": "what to write"}, "defer_loading": True}
    bench.engine.say(CALL)
    first = await ask(client, [TASK], tools=TOOLS)
    reference = results(first, [{"type": "tool_reference", "tool_name": "write"}])
    await ask(client, [TASK, echo(first), reference], tools=[write, *TOOLS])
    calls = await bench.close(rollout_id)
    assert_exact_chain(calls)
    ids = list(calls[1].prompt_ids)
    assert bench.engine.tokenizer.decode(ids).count("what to write") == 1


async def test_a_real_change_forks_and_says_why(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("The weather is fine today.")
    first = await ask(client, [TASK], tools=TOOLS)
    other = {"role": "assistant", "content": "I said something else."}
    await ask(client, [TASK, other, TASK], tools=TOOLS)
    await ask(client, [TASK, echo(first), TASK], tools=[*TOOLS, {**TOOLS[0], "name": "list"}])
    ephemeral = {"role": "system", "content": "One thing more."}
    third = await ask(client, [TASK, echo(first), TASK, ephemeral], tools=TOOLS)
    await ask(client, [TASK, echo(first), TASK, echo(third), TASK], tools=TOOLS)
    calls = await bench.close(rollout_id)
    assert [call.cause for call in calls] == ["root", "rewrite", "tool_schema", "continue", "reminder"]


async def test_thinking_is_sent_and_taken_back(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("<think>\nwhy not\n</think>\n\nfine")
    first = await ask(client, [TASK], True)
    assert [block.type for block in first.content] == ["thinking", "text"]
    assert first.content[0].type == "thinking"
    assert first.content[0].thinking == "why not"
    await ask(client, [TASK, echo(first), TASK])
    assert_exact_chain(await bench.close(rollout_id))


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_true_and_so_is_the_count_before(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    told: dict[str, Any] = {"messages": [TASK], "system": SYSTEM, "tools": TOOLS}
    before = await client.messages.count_tokens(model="tiny", **told)
    bench.engine.say("fine and good")
    first = await ask(client, stream=stream, **told)
    told["messages"] = [TASK, echo(first), TASK]
    after = await client.messages.count_tokens(model="tiny", **told)
    second = await ask(client, stream=stream, **told)
    calls = await bench.close(rollout_id)
    assert len(calls) == 2
    assert [before.input_tokens, after.input_tokens] == [len(call.prompt_ids) for call in calls]
    for message, call in zip((first, second), calls, strict=True):
        assert message.usage.input_tokens == len(call.prompt_ids)
        assert message.usage.output_tokens == len(call.sampled_ids)


async def test_stop_reasons_are_those_of_the_api(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("the weather is", stop=False)
    cut = await ask(client, [TASK])
    bench.engine.say('<tool_call>\n{"name": "read", "arguments": {"path": \n</tool_call>')
    malformed = await ask(client, [TASK, echo(cut), TASK], tools=TOOLS)
    bench.engine.say("")
    empty = await ask(client, [TASK, echo(cut), TASK])
    assert [message.stop_reason for message in (cut, malformed, empty)] == ["max_tokens", "end_turn", "end_turn"]
    assert [len(message.content) for message in (cut, malformed, empty)] == [1, 1, 1]
    assert [call.verdict for call in await bench.close(rollout_id)] == ["cut", "malformed", "text"]


async def test_the_key_may_come_as_a_bearer_token_too_and_an_unknown_one_is_refused(bench: Live) -> None:
    rollout_id, _ = await bench.open()
    async with anthropic.AsyncAnthropic(base_url=bench.url, auth_token=bench.key, max_retries=0) as bearer:
        await ask(bearer, [TASK])
    with pytest.raises(anthropic.AuthenticationError) as raised:
        await ask(await bench.client("sk-wrong"), [TASK])
    assert raised.value.body == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "Incorrect API key provided."},
    }
    assert len(await bench.close(rollout_id)) == 1


async def test_a_prompt_beyond_the_context_is_refused_in_the_words_that_claude_code_reads(bench: Live) -> None:
    rollout_id, client = await bench.open()
    with pytest.raises(anthropic.BadRequestError) as raised:
        await ask(client, [{"role": "user", "content": "q" * 5000}], True)
    body: Any = raised.value.body
    assert body["error"]["type"] == "invalid_request_error"
    start, _, end = body["error"]["message"].partition(" tokens > ")
    assert start.startswith("prompt is too long: ")
    assert int(start.rpartition(" ")[2]) > 5000
    assert end == "2048 maximum"
    closed = await bench.boundary.close(rollout_id)
    assert (closed.calls, closed.counts["refused"]) == ((), 1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image' is not supported"),
        ({"messages": [TASK, {"role": "assistant", "content": "I begin"}]}, "does not support assistant message"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages.0.role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "only functions"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_said_to_the_model_is_refused_clearly(
    bench: Live, changes: dict[str, Any], told: str
) -> None:
    rollout_id, client = await bench.open()
    with pytest.raises(anthropic.BadRequestError) as raised:
        await ask(client, **{"messages": [TASK], **changes})
    assert told in str(raised.value)
    assert await bench.close(rollout_id) == ()


async def test_the_experiment_decides_sampling_and_notes_what_the_harness_wanted(bench: Live) -> None:
    rollout_id, client = await bench.open()
    shaped = {"temperature": 0.2, "top_k": 5, "stop_sequences": ["x"]}
    await ask(client, [TASK], tools=TOOLS, tool_choice={"type": "auto"}, extra_body=shaped)
    await ask(client, [TASK, TASK], tools=TOOLS, tool_choice={"type": "any"})
    await ask(client, [TASK, TASK, TASK], tool_choice={"type": "any"})
    first, second, third = await bench.close(rollout_id)
    assert [edit.rule for edit in third.edits] == ["tools.choice_without_tools"]
    assert {edit.rule for edit in first.edits} == {
        "sampling.temperature",
        "sampling.top_k",
        "sampling.stop_sequences",
    }
    assert [edit.rule for edit in second.edits] == ["sampling.tool_choice"]
    assert bench.engine.requests[0]["sampling_params"]["max_tokens"] == 256


async def test_questions_on_the_side_are_auxiliary_and_the_conversation_is_not(bench: Live) -> None:
    rollout_id, client = await bench.open()
    probe: Any = [{"role": "user", "content": "quota"}]
    bench.engine.say("o", stop=False)
    await ask(client, probe, max_tokens=1)
    title = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    await ask(client, [TASK], True, extra_body={"output_config": title})
    bench.engine.say(CALL)
    first = await ask(client, [TASK], True, tools=TOOLS, extra_body={"output_config": {"effort": "high"}})
    helper = {"x-claude-code-agent-id": "a810"}
    await ask(client, probe, True, tools=TOOLS, extra_headers=helper)
    await ask(client, [TASK, echo(first), results(first)], True, tools=TOOLS)
    calls = await bench.close(rollout_id)
    assert [(call.kind, call.cause) for call in calls] == [
        ("auxiliary", "root"),
        ("auxiliary", "root"),
        ("main", "root"),
        ("auxiliary", "subagent"),
        ("main", "continue"),
    ]


async def test_models_are_told_in_the_form_that_the_client_speaks(bench: Live) -> None:
    rollout_id, client = await bench.open()
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).display_name == "tiny"
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("other")
    assert await bench.close(rollout_id) == ()


async def streamed(bench: Live, key: str, held: asyncio.Event | None = None) -> list[tuple[str, Any]]:
    """The events of one stream as they stand on the wire; the engine is let go at the first of them."""
    url = f"{bench.url}/v1/messages?beta=true"
    body = {"max_tokens": 256, "stream": True, "messages": [TASK], "tools": TOOLS}
    found: list[tuple[str, Any]] = []
    async with (
        aiohttp.ClientSession(headers={"x-api-key": key}) as session,
        session.post(url, json=body) as response,
    ):
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        async for line in response.content:
            if line.startswith(b"event: "):
                found.append((line[7:].decode().strip(), None))
                if held is not None:
                    held.set()
            elif line.startswith(b"data: "):
                found[-1] = (found[-1][0], json.loads(line[6:]))
    return found


async def test_a_stream_has_its_events_in_order(bench: Live) -> None:
    rollout_id, client = await bench.open()
    assert client.api_key
    bench.engine.say(f"<think>\nwhy\n</think>\n\nText.{CALL}{CALL}")
    found = await streamed(bench, client.api_key)
    assert all(name == data["type"] for name, data in found)
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    signed = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    ends = ["message_delta", "message_stop"]
    assert [name for name, _ in found] == ["message_start", *signed, *block * 3, *ends]
    starts = [data["content_block"] for name, data in found if name == "content_block_start"]
    assert [start["type"] for start in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert found[0][1]["message"]["stop_reason"] is None
    assert found[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    await bench.close(rollout_id)


async def test_a_stream_is_kept_alive_while_the_model_works(bench: Live) -> None:
    rollout_id, client = await bench.open()
    assert client.api_key
    bench.engine.release = asyncio.Event()
    async with asyncio.timeout(60):
        found = await streamed(bench, client.api_key, bench.engine.release)
    names = [name for name, _ in found]
    assert names[0] == "ping"
    assert names[-1] == "message_stop"
    assert next(name for name in names if name != "ping") == "message_start"
    assert len(await bench.close(rollout_id)) == 1


async def test_the_official_client_waits_through_pings(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.release = asyncio.Event()
    bench.engine.say("fine")
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asking = group.create_task(ask(client, [TASK], True))
        await bench.engine.arrived.acquire()
        await asyncio.sleep(PING_S + 1)
        bench.engine.release.set()
    assert asking.result().content[0].model_dump()["text"] == "fine"
    assert len(await bench.close(rollout_id)) == 1


async def test_an_engine_that_stays_down_ends_a_stream_that_has_begun_with_an_error(bench: Live) -> None:
    rollout_id, client = await bench.open()
    assert client.api_key
    bench.engine.release = asyncio.Event()
    for _ in range(2):
        bench.engine.say("three words here", logprobs={"content": []})
    async with asyncio.timeout(60):
        found = await streamed(bench, client.api_key, bench.engine.release)
    assert found[0][0] == "ping"
    assert found[-1][0] == "error"
    assert found[-1][1]["error"]["type"] == "overloaded_error"
    assert (await bench.boundary.close(rollout_id)).calls == ()


async def test_a_client_that_leaves_a_stream_that_has_begun_cancels_its_generation(bench: Live) -> None:
    rollout_id, client = await bench.open()
    assert client.api_key
    bench.engine.release = asyncio.Event()
    bench.engine.cancelled.clear()
    url = f"{bench.url}/v1/messages"
    body = {"max_tokens": 9, "stream": True, "messages": [TASK]}
    async with asyncio.timeout(60):
        async with (
            aiohttp.ClientSession(headers={"x-api-key": client.api_key}) as session,
            session.post(url, json=body) as response,
        ):
            assert (await response.content.readline()).startswith(b"event: ping")
        await bench.engine.cancelled.wait()
    closed = await bench.boundary.close(rollout_id)
    assert (closed.calls, closed.counts["left"]) == ((), 1)
