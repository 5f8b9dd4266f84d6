import json
from typing import Any

import pytest
from scripted_model import KEY, Attempted, Served, call, is_append_only, option

from clawexp.outcome import Outcome
from clawexp.runtime.local import Local

OVERFLOW = {"status": 400, "body": {"error": {"code": "context_length_exceeded", "message": "too long"}}}
READ = call("read", path="a.conf")
WRITE = call("write", path="out.txt", content="4")


def roles(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_it_calls_tools_until_the_model_answers(served: Served, attempted: Attempted, stream: bool):
    async with served(READ, WRITE, "Done.") as model:
        attempt = await attempted(option("builtin", stream=stream), model)
    assert attempt.finished.code == 0, attempt.finished.stderr
    assert attempt.files["out.txt"] == b"4"
    assert is_append_only(model.bodies)
    assert roles(model.bodies[2]) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [m["content"] for m in model.bodies[2]["messages"] if m["role"] == "tool"] == ["x = 4\n", "ok"]
    assert model.bodies[1]["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"path":"a.conf"}'
    assert model.bodies[0].get("stream", False) is stream
    assert model.keys == {f"Bearer {KEY}"}
    assert attempt.counts == {
        "turns": 3,
        "tool_calls": 2,
        "tool_errors": 0,
        "compactions": 0,
        "malformed_retries": 0,
        "subagents": 0,
    }


async def test_its_first_prompt_is_small(served: Served, attempted: Attempted):
    async with served("Done.") as model:
        await attempted(option("builtin"), model, "Do it.")
    assert len(json.dumps(model.bodies[0])) < 900


async def test_it_works_as_a_plain_subprocess_too(served: Served, attempted: Attempted):
    async with served(WRITE, "Done.") as model:
        runtime = Local(file_bytes=1000, allow_unsafe=False)
        attempt = await attempted(option("builtin"), model, runtime=runtime)
    assert (attempt.finished.code, attempt.files["out.txt"]) == (0, b"4")


async def test_every_tool_does_what_it_says(served: Served, attempted: Attempted):
    replies = [
        call("ls", path="."),
        call("write", path="new/b.txt", content="one two"),
        call("edit", path="new/b.txt", old="two", new="three"),
        call("exec", command="cat new/b.txt; exit 3"),
        call("exec", command="sleep 60"),
        "Done.",
    ]
    tools = ["read", "write", "edit", "ls", "exec"]
    async with served(*replies) as model:
        attempt = await attempted(option("builtin", tools=tools, exec_s=0.5), model)
    assert attempt.files["new/b.txt"] == b"one three"
    results = [m["content"] for m in model.bodies[-1]["messages"] if m["role"] == "tool"]
    assert results[:4] == ["a.conf", "ok", "ok", "one three\n[exit 3]"]
    assert results[4].strip().startswith("[killed after 0.5 s]")
    assert attempt.counts["tool_errors"] == 0


async def test_a_failed_tool_call_is_told_and_not_fatal(served: Served, attempted: Attempted):
    replies = [
        call("read", path="none.txt"),
        call("read", path="../home/agent/.clawexp.json"),
        call("edit", path="a.conf", old="zzz", new="y"),
        call("exec", command="true"),
        {"calls": [("read", '{"path": ')]},
        call("read", wrong="x"),
        "Sorry.",
    ]
    async with served(*replies) as model:
        attempt = await attempted(option("builtin", tools=["read", "edit"]), model)
    results = [m["content"] for m in model.bodies[-1]["messages"] if m["role"] == "tool"]
    assert results[:4] == [
        "error: no such file or directory",
        "error: path is outside the folder",
        "error: old text found 0 times, not once",
        "error: no tool 'exec'",
    ]
    assert all(result.startswith("error: ") for result in results)
    assert (attempt.finished.code, attempt.counts["tool_errors"]) == (0, 6)


@pytest.mark.parametrize("sign", ["overflow", "usage"])
async def test_it_goes_on_from_a_summary_when_the_context_fills(served: Served, attempted: Attempted, sign: str):
    full = [READ, OVERFLOW] if sign == "overflow" else [{**READ, "tokens": 7000}]
    async with served(*full, "x is 4", WRITE, "Done.") as model:
        attempt = await attempted(option("builtin"), model)
    summary, after = model.bodies[-3], model.bodies[-2]
    assert "tools" not in summary
    assert 'read {"path":"a.conf"}' in summary["messages"][1]["content"]
    assert "x = 4" in summary["messages"][1]["content"]
    assert roles(after) == ["system", "user"]
    assert after["messages"][1]["content"] == "Copy the value of x to out.txt.\n\nSo far: x is 4"
    assert (attempt.finished.code, attempt.counts["compactions"]) == (0, 1)


async def test_a_summary_that_does_not_fit_is_asked_for_less(served: Served, attempted: Attempted):
    async with served(READ, OVERFLOW, OVERFLOW, OVERFLOW, "x is 4", "Done.") as model:
        attempt = await attempted(option("builtin"), model)
    sizes = [len(body["messages"][1]["content"]) for body in model.bodies[2:5]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2]
    assert attempt.finished.code == 0


async def test_a_full_context_without_compaction_ends_it(served: Served, attempted: Attempted):
    harness = option("builtin", compaction=False)
    async with served(READ, OVERFLOW) as model:
        attempt = await attempted(harness, model)
    assert attempt.finished.code == 3
    assert harness.outcome(attempt.finished) is Outcome.TRUNCATED


async def test_a_task_that_never_fits_ends_it(served: Served, attempted: Attempted):
    async with served(OVERFLOW) as model:
        attempt = await attempted(option("builtin"), model)
    assert (attempt.finished.code, len(model.bodies)) == (3, 1)


BROKEN = '<tool_call>{"name": "read", "arguments": </tool_call>'


async def test_a_broken_tool_call_is_answered_with_an_error(served: Served, attempted: Attempted):
    async with served(BROKEN, WRITE, "Done.") as model:
        attempt = await attempted(option("builtin"), model)
    assert is_append_only(model.bodies)
    assert model.bodies[1]["messages"][2:] == [
        {"role": "assistant", "content": BROKEN},
        {"role": "user", "content": "Broken tool call. Try again."},
    ]
    assert (attempt.finished.code, attempt.counts["malformed_retries"]) == (0, 1)


async def test_a_broken_tool_call_ends_it_when_told_so(served: Served, attempted: Attempted):
    harness = option("builtin", retry_malformed=False)
    async with served(BROKEN) as model:
        attempt = await attempted(harness, model)
    assert (attempt.finished.code, len(model.bodies)) == (4, 1)
    assert harness.outcome(attempt.finished) is Outcome.PARSE_FAULT


async def test_a_helper_has_a_conversation_of_its_own(served: Served, attempted: Attempted):
    replies = [call("spawn", task="Find x."), READ, "x is 4", WRITE, "Done."]
    async with served(*replies) as model:
        attempt = await attempted(option("builtin", tools=["read", "write", "spawn"]), model)
    main, helper = model.bodies[0], model.bodies[1]
    assert [tool["function"]["name"] for tool in main["tools"]] == ["read", "write", "spawn"]
    assert [tool["function"]["name"] for tool in helper["tools"]] == ["read", "write"]
    assert [message["content"] for message in helper["messages"]] == ["Do the task.", "Find x."]
    assert model.bodies[3]["messages"][3]["content"] == "x is 4"
    assert is_append_only([model.bodies[i] for i in (0, 3, 4)])
    assert is_append_only(model.bodies[1:3])
    assert (attempt.counts["subagents"], attempt.counts["turns"]) == (1, 5)


async def test_it_stops_at_its_limit_of_turns(served: Served, attempted: Attempted):
    harness = option("builtin", max_turns=3)
    async with served(READ) as model:
        attempt = await attempted(harness, model)
    assert (attempt.finished.code, len(model.bodies)) == (3, 3)
    assert harness.outcome(attempt.finished) is Outcome.TRUNCATED


async def test_a_model_that_says_nothing_has_given_up(served: Served, attempted: Attempted):
    harness = option("builtin")
    async with served(" ") as model:
        attempt = await attempted(harness, model)
    assert attempt.finished.code == 4
    assert harness.outcome(attempt.finished) is Outcome.POLICY_FAULT


async def test_an_error_of_the_model_is_told_on_stderr(served: Served, attempted: Attempted):
    harness = option("builtin")
    async with served({"status": 401, "body": {"error": "unknown key"}}) as model:
        attempt = await attempted(harness, model)
    assert attempt.finished.code == 1
    assert b"401" in attempt.finished.stderr
    assert b"unknown key" in attempt.finished.stderr
    assert (harness.outcome(attempt.finished), attempt.counts) == (None, {})
