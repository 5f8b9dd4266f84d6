"""OpenAI's own client, in its responses form, in front of the capture process; a scripted engine behind it."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import openai
import pytest
from bench import CALL, CONTEXT, SCHEMA, Bench, assert_exact_chain
from openai.types.responses import Response

from clawexp.capture.awaited import PING_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS: Any = [
    {"type": "function", "name": "read", "description": "Read a file.", "strict": False, "parameters": SCHEMA}
]
SYSTEM = "You are an assistant with files."
TASK: Any = {"role": "user", "content": "Read the files and write what they say."}
Live = Bench[openai.AsyncOpenAI]


@pytest.fixture(scope="module")
def connect() -> Callable[[str, str], openai.AsyncOpenAI]:
    return lambda url, key: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def ask(client: openai.AsyncOpenAI, items: Sequence[Any] | str, stream: bool = False, **options: Any) -> Response:
    asked: dict[str, Any] = {"model": "tiny", "input": items if isinstance(items, str) else list(items), **options}
    if not stream:
        return await client.responses.create(**asked)
    async with client.responses.stream(**asked) as events:
        return await events.get_final_response()


def echo(response: Response) -> list[Any]:
    """The answer as Codex writes it back: item for item, with a field more here and there."""
    items = [item.model_dump(exclude_none=True) for item in response.output]
    for item in items:
        item.pop("parsed_arguments", None)
        if item["type"] == "reasoning":
            item["content"] = None
    return items


def results(response: Response, output: Any = "weather is fine") -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": output} for call in calls]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_append_only_conversation_keeps_its_exact_prefix(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    items: list[Any] = [TASK]
    for turn in range(4):
        bench.engine.say(f"<think>\nwhy {turn}\n</think>\n\nTurn {turn}.\n{CALL}{CALL}")
        response = await ask(client, items, stream, tools=TOOLS, instructions=SYSTEM)
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
        assert response.output_text == f"Turn {turn}."
        first = response.output[2]
        assert first.type == "function_call"
        assert first.call_id.isalnum()
        assert first.arguments == '{"path":"notes.txt","lines":[1,2]}'
        items += [*echo(response), *results(response)]
    calls = await bench.close(rollout_id)
    assert len(calls) == 4
    assert_exact_chain(calls)
    assert {(call.dialect, call.kind, call.verdict) for call in calls} == {("openai_responses", "main", "tool_calls")}


async def test_items_written_back_bare_and_respaced_keep_the_prefix(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say(f"Fine.{CALL}")
    response = await ask(client, "Read the files.", tools=TOOLS)
    (call,) = [item for item in response.output if item.type == "function_call"]
    history = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read the files."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Fine."}]},
        {"type": "function_call", "call_id": "x", "name": "read", "arguments": json.dumps(json.loads(call.arguments))},
        {"type": "function_call_output", "call_id": "x", "output": [{"type": "input_text", "text": "x = 4"}]},
    ]
    await ask(client, history, tools=TOOLS)
    assert_exact_chain(await bench.close(rollout_id))


async def test_text_without_a_call_ends_a_turn_and_the_next_one_is_another(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("one")
    one = await ask(client, [TASK])
    bench.engine.say("<think>\nhm\n</think>\n\ntwo")
    two = await ask(client, [TASK, *echo(one), TASK])
    await ask(client, [TASK, *echo(one), TASK, *echo(two), {"role": "developer", "content": "Go on."}])
    assert_exact_chain(await bench.close(rollout_id))


async def test_tools_in_namespaces_and_tools_that_take_text_are_called_as_they_were_offered(bench: Live) -> None:
    rollout_id, client = await bench.open()
    tools = [
        {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": TOOLS},
        {"type": "custom", "name": "apply", "description": "Apply a patch."},
    ]
    bench.engine.say(
        '<tool_call>\n{"name": "agents.read", "arguments": {"path": "a"}}\n</tool_call>'
        '<tool_call>\n{"name": "apply", "arguments": {"input": "+ x\\n"}}\n</tool_call>'
    )
    response = await ask(client, [TASK], True, tools=tools)
    grouped, text = response.output
    assert grouped.type == "function_call"
    assert (grouped.namespace, grouped.name, grouped.arguments) == ("agents", "read", '{"path":"a"}')
    assert text.type == "custom_tool_call"
    assert (text.name, text.input) == ("apply", "+ x\n")
    outputs = [
        *results(response),
        {"type": "custom_tool_call_output", "call_id": text.call_id, "output": "done"},
    ]
    await ask(client, [TASK, *echo(response), *outputs], tools=tools)
    calls = await bench.close(rollout_id)
    assert_exact_chain(calls)
    assert '"agents.read"' in bench.engine.tokenizer.decode(list(calls[0].prompt_ids))


async def test_tools_that_only_openai_runs_are_left_out_and_noted(bench: Live) -> None:
    rollout_id, client = await bench.open()
    await ask(client, [TASK], tools=[*TOOLS, {"type": "web_search"}])
    with pytest.raises(openai.BadRequestError, match="only functions are offered"):
        await ask(client, [TASK], tools=[{"type": "web_search"}])
    (call,) = await bench.close(rollout_id)
    assert [(edit.rule, edit.before, edit.after) for edit in call.edits] == [
        ("tools.server", {"type": "web_search"}, None)
    ]


async def test_a_stream_has_its_events_in_order(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say(f"<think>\nwhy\n</think>\n\nText.{CALL}{CALL}")
    events = [
        event async for event in await client.responses.create(model="tiny", input=[TASK], tools=TOOLS, stream=True)
    ]
    summary = ["reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done",
               "reasoning_summary_part.done"]  # fmt: skip
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    items = ["output_item.added", *summary, "output_item.done", "output_item.added", *text, "output_item.done"]
    items += ["output_item.added", *arguments, "output_item.done"] * 2
    expected = ["created", "in_progress", *items, "completed"]
    assert [event.type for event in events] == [f"response.{name}" for name in expected]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added = [event for event in events if event.type == "response.output_item.added"]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in added] == [event.output_index for event in done] == [0, 1, 2, 3]
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.to_dict() for item in last.response.output] == [event.item.to_dict() for event in done]
    await bench.close(rollout_id)


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_true_and_so_is_the_count_before(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    before = await client.responses.input_tokens.count(model="tiny", input=[TASK], tools=TOOLS, instructions=SYSTEM)
    response = await ask(client, [TASK], stream, tools=TOOLS, instructions=SYSTEM)
    (call,) = await bench.close(rollout_id)
    assert response.usage is not None
    assert before.input_tokens == response.usage.input_tokens == len(call.prompt_ids)
    assert response.usage.output_tokens == len(call.sampled_ids)
    assert response.usage.total_tokens == len(call.prompt_ids) + len(call.sampled_ids)


async def test_an_answer_cut_by_its_limit_is_incomplete(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("the weather is", stop=False)
    whole = await ask(client, [TASK], max_output_tokens=5)
    bench.engine.say("the weather is", stop=False)
    events = [event async for event in await client.responses.create(model="tiny", input=[TASK], stream=True)]
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert events[-1].type == "response.incomplete"
    calls = await bench.close(rollout_id)
    assert [call.verdict for call in calls] == ["cut", "cut"]
    assert calls[0].submitted["max_tokens"] == 5


async def test_a_prompt_beyond_the_context_fails_as_each_client_reads_it(bench: Live) -> None:
    rollout_id, client = await bench.open()
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client, "q" * 5000)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIError) as broken:
        await ask(client, "q" * 5000, True)
    assert broken.value.code == "context_length_exceeded"
    body = json.dumps({"input": "q" * 5000, "stream": True}).encode()
    headers = {"authorization": f"Bearer {bench.key}", "content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{bench.url}/v1/responses", data=body, headers=headers) as got,
    ):
        events = [json.loads(line[6:]) async for line in got.content if line.startswith(b"data: ")]
    assert got.status == 200
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
    assert "exceeds the context window" in events[-1]["response"]["error"]["message"]
    assert f"where {CONTEXT} are" in events[-1]["response"]["error"]["message"]
    closed = await bench.boundary.close(rollout_id)
    assert (closed.calls, closed.counts["refused"]) == ((), 3)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
            "'input_image' is not",
        ),
        ({"input": [{"type": "web_search_call", "id": "ws", "status": "completed"}]}, "'web_search_call' is not"),
        ({"input": []}, "at least one item"),
        ({"input": [{"role": "wizard", "content": ""}]}, "input\\[0\\].role"),
        ({"previous_response_id": "resp_1"}, "send the whole input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "function", "parameters": {}}]}, "must have a name"),
    ],
)
async def test_what_cannot_be_said_to_the_model_is_refused_clearly(
    bench: Live, changes: dict[str, Any], told: str
) -> None:
    rollout_id, client = await bench.open()
    asked: dict[str, Any] = {"model": "tiny", "input": [TASK], **changes}
    with pytest.raises(openai.BadRequestError, match=told):
        await client.responses.create(**asked)
    assert await bench.close(rollout_id) == ()


async def test_an_unknown_key_an_unknown_response_and_a_websocket_are_refused(bench: Live) -> None:
    rollout_id, client = await bench.open()
    with pytest.raises(openai.AuthenticationError):
        await ask(await bench.client("sk-wrong"), [TASK])
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")
    upgrade = {"authorization": f"Bearer {bench.key}", "upgrade": "websocket", "connection": "Upgrade"}
    upgrade |= {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    async with aiohttp.ClientSession() as session, session.get(f"{bench.url}/v1/responses", headers=upgrade) as got:
        assert got.status == 426
        assert (await got.json())["error"]["code"] == "upgrade_refused"
    assert await bench.close(rollout_id) == ()


async def test_the_experiment_decides_sampling_and_notes_what_the_harness_wanted(bench: Live) -> None:
    rollout_id, client = await bench.open()
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    await ask(client, [TASK], temperature=0.2, text=form, tool_choice="auto", parallel_tool_calls=False)
    await ask(client, [TASK], text={"format": {"type": "text"}}, tools=TOOLS, tool_choice="auto")
    first, second = await bench.close(rollout_id)
    assert {edit.rule for edit in first.edits} == {
        "sampling.temperature",
        "sampling.response_format",
        "sampling.parallel_tool_calls",
        "tools.choice_without_tools",
    }
    assert second.edits == ()


async def test_codex_names_its_helpers_and_they_are_auxiliary(bench: Live) -> None:
    rollout_id, client = await bench.open()
    await ask(client, [TASK], True, tools=TOOLS)
    metadata = json.dumps({"request_kind": "turn"})
    await ask(
        client, "Help.", True, extra_headers={"x-openai-subagent": "collab_spawn", "x-codex-turn-metadata": metadata}
    )
    assert [call.kind for call in await bench.close(rollout_id)] == ["main", "auxiliary"]


async def test_the_official_client_waits_through_what_keeps_a_stream_alive(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.release = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asking = group.create_task(ask(client, [TASK], True))
        await bench.engine.arrived.acquire()
        await asyncio.sleep(PING_S + 1)
        bench.engine.release.set()
    assert asking.result().output_text == "ok"
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
    assert asking.result().code == "engine_unavailable"
    assert (await bench.boundary.close(rollout_id)).calls == ()


async def failure(client: openai.AsyncOpenAI) -> openai.APIError:
    with pytest.raises(openai.APIError) as raised:
        await ask(client, [TASK], True)
    return raised.value
