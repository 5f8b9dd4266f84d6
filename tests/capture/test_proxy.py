"""The capture process, seen from outside: the official client in front, a scripted engine behind."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import openai
import pytest
from bench import CALL, SCHEMA, Bench, assert_exact_chain

from clawexp.capture.awaited import PING_S
from clawexp.capture.journal import AppendLog
from clawexp.errors import CaptureError

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Read a file.",
            "strict": True,
            "parameters": SCHEMA,
        },
    }
]
SYSTEM = {"role": "system", "content": "You are an assistant with files."}
TASK = {"role": "user", "content": "Read the files and write what they say."}


Live = Bench[openai.AsyncOpenAI]


@pytest.fixture(scope="module")
def connect() -> Callable[[str, str], openai.AsyncOpenAI]:
    return lambda url, key: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def ask(client: openai.AsyncOpenAI, messages: Sequence[Any], stream: bool = False, **options: Any) -> Any:
    """The assistant message as the official client understands it."""
    if not stream:
        answer = await client.chat.completions.create(model="tiny", messages=list(messages), **options)
        return answer.choices[0].message.model_dump(exclude_none=True)
    async with client.chat.completions.stream(model="tiny", messages=list(messages), **options) as events:
        answer = await events.get_final_completion()
    message = answer.choices[0].message.model_dump(exclude_none=True)
    for call in message.get("tool_calls", []):
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    return message


def results(message: Any, text: str = "weather is fine") -> list[Any]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in message["tool_calls"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_append_only_conversation_keeps_its_exact_prefix_over_ten_turns(bench: Live, stream: bool) -> None:
    rollout_id, client = await bench.open()
    messages: list[Any] = [SYSTEM, TASK]
    for turn in range(10):
        # Not what an encoder would write: two spaces, and a word spelled letter by letter.
        bench.engine.say(f"Turn {turn}.\n{CALL}")
        spelled = [bench.engine.tokenizer.encode(letter)[0] for letter in "notes"]
        choice = bench.engine.script[-1]
        choice["token_ids"][:0] = spelled
        choice["logprobs"]["content"][:0] = [{"logprob": -1.0}] * len(spelled)
        message = await ask(client, messages, stream, tools=TOOLS)
        assert message["content"] == f"notesTurn {turn}."
        messages += [message, *results(message)]
    calls = await bench.close(rollout_id)
    assert len(calls) == 10
    assert_exact_chain(calls)
    assert all(len(call.logprobs) == len(call.sampled_ids) for call in calls)
    assert {call.verdict for call in calls} == {"tool_calls"}
    assert [request["token_ids"] for request in bench.engine.requests] == [list(call.prompt_ids) for call in calls]


async def test_arguments_written_back_with_other_spaces_and_ids_keep_the_prefix(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say(CALL)
    message = await ask(client, [SYSTEM, TASK], tools=TOOLS)
    assert message["tool_calls"][0]["function"]["arguments"] == '{"path":"notes.txt","lines":[1,2]}'
    function = {"name": "read", "arguments": '{ "lines": [1.0, 2],   "path": "notes.txt" }'}
    echoed = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "x9", "type": "function", "function": function}],
    }
    task = {
        "role": "user",
        "content": [{"type": "text", "text": TASK["content"], "cache_control": {"type": "ephemeral"}}],
    }
    await ask(client, [SYSTEM, task, echoed, {"role": "tool", "tool_call_id": "x9", "content": "fine"}], tools=TOOLS)
    assert_exact_chain(await bench.close(rollout_id))


async def test_a_rewritten_history_forks_and_says_why(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("The weather is fine today.")
    message = await ask(client, [SYSTEM, TASK])
    await ask(client, [SYSTEM, TASK, {**message, "content": "I said something else."}, TASK])
    await ask(client, [SYSTEM, TASK, message, TASK], tools=TOOLS)
    closed = await bench.boundary.close(rollout_id)
    assert [call.cause for call in closed.calls] == ["root", "rewrite", "tool_schema"]
    assert closed.counts["forks"] == {"rewrite": 1, "tool_schema": 1}
    root, rewritten = closed.calls[0], closed.calls[1]
    assert rewritten.parent == root.call_id
    assert len(root.prompt_ids) <= rewritten.shared < len(root.prompt_ids + root.sampled_ids)
    assert rewritten.prompt_ids[: rewritten.shared] == (root.prompt_ids + root.sampled_ids)[: rewritten.shared]


async def test_an_answer_whose_logprobs_do_not_align_is_refused_and_marks_the_rollout(bench: Live) -> None:
    rollout_id, client = await bench.open()
    for _ in range(2):
        bench.engine.say("three words here", logprobs={"content": [{"logprob": -1.0}]})
    with pytest.raises(openai.InternalServerError) as raised:
        await ask(client, [TASK])
    assert raised.value.status_code == 503
    assert raised.value.response.headers["retry-after"]
    closed = await bench.boundary.close(rollout_id)
    assert closed.calls == ()
    assert (closed.counts["engine_faults"], closed.counts["capture_faults"]) == (1, 0)


async def test_an_unknown_key_gets_401_and_leaves_no_trace(bench: Live) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        await ask(await bench.client("sk-wrong"), [TASK])
    assert raised.value.code == "invalid_api_key"
    assert bench.engine.requests == []


async def test_a_key_ends_with_its_rollout(bench: Live) -> None:
    rollout_id, client = await bench.open()
    await bench.close(rollout_id)
    with pytest.raises(openai.AuthenticationError):
        await ask(client, [TASK])


async def test_a_prompt_beyond_the_context_is_refused_in_the_form_that_harnesses_know(bench: Live) -> None:
    rollout_id, client = await bench.open()
    with pytest.raises(openai.BadRequestError) as raised:
        await ask(client, [{"role": "user", "content": "q" * 5000}])
    assert raised.value.code == "context_length_exceeded"
    assert "maximum context length is 2048 tokens" in str(raised.value)
    await ask(client, [{"role": "user", "content": "Summarise."}])
    await ask(client, [{"role": "user", "content": "Summarise, in short."}])
    closed = await bench.boundary.close(rollout_id)
    assert closed.counts["refused"] == 1
    assert len(closed.calls) == 2


async def test_the_experiment_decides_sampling_and_notes_what_the_harness_wanted(bench: Live) -> None:
    rollout_id, client = await bench.open()
    await ask(client, [TASK], temperature=0.2, top_p=0.9, max_completion_tokens=7, seed=5)
    (call,) = await bench.close(rollout_id)
    (request,) = bench.engine.requests
    assert request["sampling_params"]["temperature"] == 1.0
    assert request["sampling_params"]["max_tokens"] == 7
    assert "seed" not in request["sampling_params"]
    assert call.requested == {"temperature": 0.2, "top_p": 0.9, "max_completion_tokens": 7, "seed": 5}
    assert call.submitted["temperature"] == 1.0
    assert {edit.rule for edit in call.edits} == {"sampling.temperature", "sampling.top_p", "sampling.seed"}


async def test_usage_is_true_and_a_stream_ends_with_it(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("fine")
    whole = await client.chat.completions.create(model="tiny", messages=[TASK])  # pyright: ignore[reportArgumentType]
    bench.engine.say("fine")
    async with client.chat.completions.stream(
        model="tiny",
        messages=[TASK],  # pyright: ignore[reportArgumentType]
        stream_options={"include_usage": True},
    ) as events:
        streamed = await events.get_final_completion()
    calls = await bench.close(rollout_id)
    for usage, call in zip((whole.usage, streamed.usage), calls, strict=True):
        assert usage is not None
        assert usage.prompt_tokens == len(call.prompt_ids)
        assert usage.completion_tokens == len(call.sampled_ids)
    assert calls[1].cause == "retry"


async def test_a_malformed_tool_call_reaches_the_harness_as_text(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say('<tool_call>\n{"name": "read", "arguments": {"path": \n</tool_call>')
    message = await ask(client, [TASK], tools=TOOLS)
    assert "tool_calls" not in message
    assert message["content"].startswith("<tool_call>")
    await ask(client, [TASK, message, TASK], tools=TOOLS)
    calls = await bench.close(rollout_id)
    assert [call.verdict for call in calls] == ["malformed", "text"]
    assert_exact_chain(calls)


async def test_an_answer_cut_by_its_limit_says_so_and_can_be_continued(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("the weather is", stop=False)
    answer = await client.chat.completions.create(model="tiny", messages=[TASK])  # pyright: ignore[reportArgumentType]
    assert answer.choices[0].finish_reason == "length"
    await ask(client, [TASK, answer.choices[0].message.model_dump(exclude_none=True), TASK])
    calls = await bench.close(rollout_id)
    assert calls[0].verdict == "cut"
    assert_exact_chain(calls)


async def test_no_answer_is_empty_and_what_was_sampled_stays(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("")
    message = await ask(client, [TASK])
    assert message["content"]
    await ask(client, [TASK, message, TASK])
    calls = await bench.close(rollout_id)
    assert len(calls[0].sampled_ids) == 1
    assert_exact_chain(calls)


async def test_after_its_last_call_a_rollout_gets_a_final_answer_that_is_not_sampled(bench: Live) -> None:
    rollout_id, client = await bench.open()
    told = [await ask(client, [{"role": "user", "content": f"Turn {turn}"}]) for turn in range(13)]
    assert [message["content"] for message in told[:12]] == ["ok"] * 12
    assert told[12]["content"] not in ("ok", "")
    closed = await bench.boundary.close(rollout_id)
    assert len(closed.calls) == 12
    assert len(bench.engine.requests) == 12
    assert closed.counts["final_answers"] == 1


async def test_a_failing_engine_is_asked_again_while_the_client_waits(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.failures = 1
    assert (await ask(client, [TASK]))["content"] == "ok"
    closed = await bench.boundary.close(rollout_id)
    assert closed.counts["engine_faults"] == 0
    first, second = bench.engine.requests
    assert first["token_ids"] == second["token_ids"]


async def test_an_engine_that_stays_down_is_told_with_retry_after_and_marks_the_rollout(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.failures = 2
    with pytest.raises(openai.InternalServerError) as raised:
        await ask(client, [TASK])
    assert raised.value.status_code == 503
    assert raised.value.response.headers["retry-after"]
    closed = await bench.boundary.close(rollout_id)
    assert closed.counts["engine_faults"] == 1
    assert closed.calls == ()


async def test_a_client_that_leaves_cancels_its_generation(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.release = asyncio.Event()
    with pytest.raises(openai.APITimeoutError):
        await ask(client.with_options(timeout=0.5), [TASK])
    async with asyncio.timeout(10):
        await bench.engine.cancelled.wait()
    bench.engine.release = None
    assert (await ask(client, [TASK]))["content"] == "ok"
    closed = await bench.boundary.close(rollout_id)
    assert [(call.position, call.cause) for call in closed.calls] == [(1, "root")]
    assert closed.counts["left"] == 1


async def test_a_declared_retry_of_an_answered_call_gets_the_same_answer_and_no_second_call(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.say("the only answer")
    first = await ask(client, [TASK])
    again = await ask(client, [TASK], extra_headers={"x-stainless-retry-count": "1"})
    assert again == first
    closed = await bench.boundary.close(rollout_id)
    assert len(closed.calls) == 1
    assert closed.counts["replayed"] == 1


async def test_calls_of_one_rollout_are_served_at_the_same_time(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.release = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(ask(client, [{"role": "user", "content": f"Side task {name}"}]))
        async with asyncio.timeout(20):
            for _ in range(3):
                await bench.engine.arrived.acquire()
        bench.engine.release.set()
    calls = await bench.close(rollout_id)
    assert [call.position for call in calls] == [0, 1, 2]
    assert sum(call.parent is None for call in calls) == 1


async def test_two_rollouts_never_mix(bench: Live) -> None:
    (one, first), (two, second) = await bench.open(), await bench.open()
    bench.engine.say("for the first")
    bench.engine.say("for the second")
    told_first = await ask(first, [SYSTEM, TASK])
    told_second = await ask(second, [SYSTEM, TASK])
    await ask(first, [SYSTEM, TASK, told_first, TASK])
    # The other rollout's answer is nothing that this one said.
    await ask(second, [SYSTEM, TASK, told_first, TASK])
    calls = await bench.close(one)
    others = await bench.close(two)
    assert told_second["content"] == "for the second"
    assert_exact_chain(calls)
    assert [call.cause for call in others] == ["root", "rewrite"]
    assert {call.rollout_id for call in calls} == {one}
    assert {call.rollout_id for call in others} == {two}


async def test_the_official_client_waits_through_what_keeps_a_stream_alive(bench: Live) -> None:
    rollout_id, client = await bench.open()
    bench.engine.release = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asking = group.create_task(ask(client, [TASK], stream=True))
        await asyncio.sleep(PING_S + 1)
        bench.engine.release.set()
    assert asking.result()["content"] == "ok"
    assert len(await bench.close(rollout_id)) == 1


async def test_a_stream_comes_in_one_piece(bench: Live) -> None:
    await bench.open()
    body = json.dumps({"model": "tiny", "stream": True, "messages": [TASK]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: model\r\nauthorization: Bearer {bench.key}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.boundary.door("").port)
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(20):
        piece = await reader.read(65536)
    assert piece.startswith(b"HTTP/1.1 200")
    assert b"data: [DONE]" in piece
    writer.close()
    await writer.wait_closed()


async def test_the_unix_socket_is_the_same_door(bench: Live) -> None:
    rollout_id, client = await bench.open()
    transport = httpx.AsyncHTTPTransport(uds=str(bench.boundary.door("").socket))
    async with httpx.AsyncClient(transport=transport) as http:
        async with openai.AsyncOpenAI(
            base_url="http://proxy/v1", api_key=client.api_key, http_client=http
        ) as by_socket:
            message = await ask(by_socket, [TASK], stream=True)
        await ask(client, [TASK, message, TASK])
    assert_exact_chain(await bench.close(rollout_id))
    assert len(str(bench.boundary.door("").socket)) < 108
    assert bench.boundary.door("").socket.stat().st_mode & 0o777 == 0o666
    assert bench.boundary.sockets.stat().st_mode & 0o777 == 0o711
    assert (bench.boundary.sockets / "admin-0").stat().st_mode & 0o777 == 0o600


async def test_the_drivers_door_needs_the_drivers_key(bench: Live) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(bench.boundary.sockets / "admin-0"))
    async with httpx.AsyncClient(transport=transport, base_url="http://capture") as http:
        for headers in ({}, {"authorization": "Bearer sk-wrong"}):
            for answer in (await http.get("/stats", headers=headers), await http.post("/open", headers=headers)):
                assert answer.status_code == 401
                assert answer.json() == {"error": "the key of the capture process is wrong"}


async def test_a_client_that_leaves_by_the_unix_socket_cancels_too(bench: Live) -> None:
    _, client = await bench.open()
    bench.engine.release = asyncio.Event()
    reader, writer = await asyncio.open_unix_connection(bench.boundary.door("").socket)
    body = json.dumps({"messages": [TASK]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {client.api_key}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(10):
        await bench.engine.arrived.acquire()
        writer.close()
        await bench.engine.cancelled.wait()
    assert not await reader.read()


async def test_models_are_listed_and_unknown_paths_refused(bench: Live) -> None:
    rollout_id, client = await bench.open()
    assert [model.id async for model in await client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="tiny", input="x")
    assert await bench.close(rollout_id) == ()


async def test_half_a_character_is_none(bench: Live) -> None:
    rollout_id, client = await bench.open()
    half = b'{"messages": [{"role": "user", "content": "cut \\ud83d here"}]}'
    status, _ = await bench.send("/v1/chat/completions", half, authorization=f"Bearer {client.api_key}")
    assert status == 200
    (call,) = await bench.close(rollout_id)
    assert call.verdict == "text"


async def test_the_live_process_has_no_torch(bench: Live) -> None:
    (stats,) = await bench.boundary.stats()
    assert stats["torch"] is False
    assert stats["in_flight"] == 0


async def test_a_rollout_is_never_written_over_an_earlier_one(bench: Live) -> None:
    with AppendLog(bench.boundary.journal("earlier"), fsync=False) as journal:
        journal.append({"call": "an earlier one"})
    with pytest.raises(CaptureError, match="earlier attempt"):
        await bench.boundary.open("earlier", seed=1)
