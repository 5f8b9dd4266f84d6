import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dialect_model import ServedDialect
from scripted_model import KEY, AnyGrader, Attempted, Served, call, is_append_only, option

from clawexp.capture.message import TooLong
from clawexp.capture.tokenizer import Tokenizer
from clawexp.harness.npm import NpmPackage
from clawexp.harness.profile import Profile
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.outcome import Outcome
from clawexp.records import Finished, Launch, Link, Needs, Owner, Rollout, Task
from clawexp.run_folder import RunFolder
from clawexp.runtime.bubblewrap import Bubblewrap

TOKENIZER = Tokenizer(checkpoint_folder("package:tiny"))
LINK = Link(url="http://127.0.0.1:8089", socket=None, key=KEY, model="tiny", context=4096, max_tokens=256)


def package(version: str) -> NpmPackage:
    return NpmPackage(name="@demo/agent", version=version, binary="demo", node="24.0.0")


def profile(**changes: Any) -> Profile:
    values: dict[str, Any] = {
        "name": "demo",
        "dialect": "openai_chat",
        "way_in": "base_url",
        "num_tasks": 1,
        "group_size": 1,
        "eval_tasks": 1,
        "weight": None,
        "min_context": 1,
        "timeout_s": 5.0,
        "memory_mb": 10,
        "package": package("1.2.3"),
        "argv": ("{node}", "{package}/main.js", "--model", "x/{model}"),
        "stdin": "{task}",
        "env": {"HOME": "{home}", "LIMIT": "{context}"},
        "files": {},
        "check": (),
        "check_says": "",
        "exit_outcomes": {2: Outcome.TRUNCATED},
        "stderr_outcomes": {"ended .* stop": Outcome.COMPLETED},
        "stdout_outcomes": {},
        "count_patterns": {},
    }
    return Profile(**values | changes)


async def launched(harness: Profile, tmp_path: Path, instruction: str = "Do it.") -> Launch:
    task = Task(id="t", instruction=instruction, files={}, grader=AnyGrader(), split="train")
    owner = Owner(run_id="run", rollout_id="r", root=tmp_path / "b", proxy_socket=None, proxy_port=8089)
    async with Bubblewrap(
        file_bytes=1000, memory_mb=4000, cpus=2.0, pids=1000, disk_mb=4000, require_limits=False
    ).sandbox(task, Needs(), owner) as sandbox:
        return harness.launch(task, LINK, sandbox)


async def test_templates_are_filled_for_the_rollout(tmp_path: Path):
    launch = await launched(profile(), tmp_path)
    assert launch.command.argv[1:] == (f"{package('1.2.3').root}/node_modules/@demo/agent/main.js", "--model", "x/tiny")
    assert launch.command.stdin == b"Do it."
    assert launch.command.env == {"HOME": "/home/agent", "LIMIT": "4096"}
    assert launch.command.timeout_s == 5.0


async def test_a_json_file_keeps_the_type_of_a_placeholder(tmp_path: Path):
    files = {"~/c.json": {"url": "{url}/v1", "key": "{key}", "window": "{context}", "list": ["{max_tokens}", 1]}}
    launch = await launched(profile(files=files), tmp_path)
    expected = {"url": "http://127.0.0.1:8089/v1", "key": KEY, "window": 4096, "list": [256, 1]}
    assert json.loads(launch.files["~/c.json"]) == expected


async def test_braces_in_a_task_are_not_placeholders(tmp_path: Path):
    launch = await launched(profile(argv=("run", "{task}")), tmp_path, "Print {key} and {model}.")
    assert launch.command.argv == ("run", "Print {key} and {model}.")


@pytest.mark.parametrize("part", ["argv", "check"])
def test_a_key_in_argv_is_refused(part: str):
    with pytest.raises(ValueError, match="could be read by others"):
        profile(**{part: ("run", "--key={key}")})


def test_a_misspelt_placeholder_is_refused():
    with pytest.raises(ValueError, match=r"unknown placeholders .*'modle'"):
        profile(files={"~/c.json": {"a": [{"b": "{modle}"}]}})


def test_it_says_how_to_prepare_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profile().prepared() == "python -m clawexp prepare harness=demo"


def test_counts_are_read_from_what_it_prints():
    harness = profile(count_patterns={"turns": '"turns": (\\d+)', "errors": "oops", "none": "x(\\d)"})
    finished = Finished(code=2, stdout=b'{"turns": 12} oops oops', stderr=b"", wall_s=1.0)
    assert harness.counts(finished) == {"turns": 12, "errors": 2, "none": 0}
    assert harness.outcome(finished) is Outcome.TRUNCATED
    said = replace(finished, code=1, stderr=b"it failed: ended with a stop")
    assert harness.outcome(said) is Outcome.COMPLETED
    assert harness.outcome(replace(said, code=0)) is None


def test_what_it_prints_tells_its_outcome_whatever_its_exit_status():
    harness = profile(stdout_outcomes={"gave up$": Outcome.POLICY_FAULT})
    finished = Finished(code=0, stdout=b"it gave up", stderr=b"", wall_s=1.0)
    assert harness.outcome(finished) is Outcome.POLICY_FAULT
    assert harness.outcome(replace(finished, code=2)) is Outcome.POLICY_FAULT
    assert harness.outcome(replace(finished, stdout=b"it gave up not")) is None


READ = call("read", path="a.conf")
WRITE = call("write", path="out.txt", content="4\n")


@pytest.mark.harness
@pytest.mark.parametrize(("name", "first_prompt"), [("pi", 6500), ("openclaw", 11_000)])
async def test_a_real_harness_does_a_task(served: Served, attempted: Attempted, name: str, first_prompt: int):
    harness = option(name)
    harness.prepare()
    assert harness.prepared() is None
    instruction = 'Copy "x" to out.txt; -- it\'s in {a.conf}.'
    async with served(READ, WRITE, "Done.") as model:
        attempt = await attempted(harness, model, instruction, context=16_000)
    assert attempt.finished.code == 0, attempt.finished.stderr[-2000:]
    assert attempt.files == {"a.conf": b"x = 4\n", "out.txt": b"4\n"}
    assert len(model.bodies) == 3
    assert is_append_only(model.bodies)
    assert instruction in json.dumps(model.bodies[0]["messages"][1]["content"]).replace('\\"', '"')
    assert len(json.dumps(model.bodies[0])) < first_prompt
    assert model.keys == {f"Bearer {KEY}"}
    assert model.bodies[0]["max_completion_tokens"] == 500
    assert (attempt.counts["turns"], attempt.counts["tool_calls"]) == (3, 2)
    assert harness.outcome(attempt.finished) is None


@pytest.mark.harness
async def test_claude_code_does_a_task_with_several_tools_at_once(
    served_anthropic: ServedDialect, attempted: Attempted
):
    harness = option("claude_code")
    harness.prepare()
    instruction = 'Copy "x" to out.txt; -- it\'s in {a.conf}.'
    looks = [("Read", {"file_path": "/work/a.conf"}), ("Glob", {"pattern": "*.conf"})]
    writes = [("Write", {"file_path": f"/work/{name}.txt", "content": "4\n"}) for name in ("out", "more")]
    wrong = [("Read", {"file_path": "/work/none"})]
    async with served_anthropic(looks, writes, wrong, "Done.") as model:
        attempt = await attempted(harness, model, instruction, context=32_000)
    assert attempt.finished.code == 0, attempt.finished.stderr[-2000:]
    assert attempt.files == {"a.conf": b"x = 4\n", "out.txt": b"4\n", "more.txt": b"4\n"}
    assert model.paths == {"POST /v1/messages"}
    assert model.keys == {KEY}
    assert {body["max_tokens"] for body in model.bodies} == {500}
    assert not any(request.edits or request.auxiliary for request in model.requests)
    # By meaning, each request is the one before it, an answer of the model, and what the tools said.
    views = model.views()
    assert [len(view.turns) for view in views] == [3, 6, 9, 11]
    for earlier, later in pairwise(views):
        assert later.turns[: len(earlier.turns)] == earlier.turns
        assert later.tools == earlier.tools
    assert [tool["function"]["name"] for tool in model.requests[0].tools] == ["Edit", "Glob", "Read", "Write"]
    assert model.requests[0].messages[1].content.strip() == instruction
    assert len(json.dumps(model.bodies[0])) < 12_000
    assert attempt.counts == {"tool_calls": 5, "tool_errors": 1, "compactions": 0}
    assert harness.outcome(attempt.finished) is None


@pytest.mark.harness
async def test_claude_code_goes_on_from_a_summary_when_it_is_told_that_its_prompt_is_too_long(
    served_anthropic: ServedDialect, attempted: Attempted
):
    harness = option("claude_code")
    harness.prepare()
    read = [("Read", {"file_path": "/work/a.conf"})]
    write = [("Write", {"file_path": "/work/out.txt", "content": "4\n"})]
    summary = "<summary>x is 4, and out.txt is still to be written.</summary>"
    async with served_anthropic(read, TooLong(33_000, 32_000), summary, write, "Done.") as model:
        attempt = await attempted(harness, model, context=32_000)
    assert attempt.finished.code == 0, attempt.finished.stderr[-2000:]
    assert attempt.files["out.txt"] == b"4\n"
    assert "x is 4, and out.txt is still to be written" in json.dumps(model.bodies[3]["messages"])
    assert attempt.counts["compactions"] == 1


@pytest.mark.harness
async def test_codex_does_a_task_with_a_shell_and_patches(served_responses: ServedDialect, attempted: Attempted):
    harness = option("codex")
    harness.prepare()
    instruction = 'Copy "x" to out.txt; -- it\'s in {a.conf}.'
    looks = [("exec_command", {"cmd": "cat a.conf; env"}), ("exec_command", {"cmd": "cat none"})]
    patch = [("apply_patch", {"input": "*** Begin Patch\n*** Add File: out.txt\n+4\n*** End Patch\n"})]
    async with served_responses(looks, patch, "Done.") as model:
        attempt = await attempted(harness, model, instruction, context=32_000)
    assert attempt.finished.code == 0, attempt.finished.stdout[-2000:]
    assert attempt.files == {"a.conf": b"x = 4\n", "out.txt": b"4\n"}
    assert (model.paths, model.keys) == ({"POST /v1/responses"}, {KEY})
    views = model.views()
    assert [len(view.turns) for view in views] == [3, 6, 8]
    for earlier, later in pairwise(views):
        assert later.turns[: len(earlier.turns)] == earlier.turns
        assert later.tools == earlier.tools
    assert model.requests[0].messages[-1].content == instruction
    assert KEY not in json.dumps(model.bodies), "the model's commands must not see the credential"
    assert len(json.dumps(model.bodies[0])) < 8000
    assert attempt.counts == {"tool_calls": 3, "tool_errors": 1}
    assert harness.outcome(attempt.finished) is None


@pytest.mark.harness
async def test_codex_whose_prompt_no_longer_fits_was_cut_short(served_responses: ServedDialect, attempted: Attempted):
    harness = option("codex")
    harness.prepare()
    read = [("exec_command", {"cmd": "cat a.conf"})]
    async with served_responses(read, TooLong(33_000, 32_000)) as model:
        attempt = await attempted(harness, model, context=32_000)
    assert attempt.finished.code == 1
    assert harness.outcome(attempt.finished) is Outcome.TRUNCATED


@pytest.mark.harness
async def test_mini_swe_agent_does_a_task_with_its_shell(served: Served, attempted: Attempted):
    harness = option("mini_swe_agent")
    harness.prepare()
    instruction = 'Copy "x" to out.txt; -- it\'s in {a.conf} {{ 1 }}.'
    steps = ("cat a.conf none", "echo 4 > out.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    async with served("Hm.", *(call("bash", command=command) for command in steps)) as model:
        attempt = await attempted(harness, model, instruction)
    assert attempt.finished.code == 0, attempt.finished.stderr[-2000:]
    assert attempt.files == {"a.conf": b"x = 4\n", "out.txt": b"4\n"}
    assert instruction in model.bodies[0]["messages"][1]["content"]
    assert is_append_only(model.bodies)
    assert "Tool call error" in model.bodies[1]["messages"][2]["content"], "an answer without a call is dropped"
    assert model.keys == {f"Bearer {KEY}"}
    assert {body["max_tokens"] for body in model.bodies} == {500}
    assert attempt.counts == {"turns": 3, "tool_calls": 3, "format_errors": 1}
    assert harness.outcome(attempt.finished) is None


@pytest.mark.harness
async def test_mini_swe_agent_gives_up_on_a_model_that_calls_nothing(served: Served, attempted: Attempted):
    harness = option("mini_swe_agent")
    harness.prepare()
    async with served("Exit:\nRepeatedFormatError\n") as model:
        attempt = await attempted(harness, model)
    assert (attempt.finished.code, len(model.bodies)) == (0, 3)
    assert harness.outcome(attempt.finished) is Outcome.POLICY_FAULT


@pytest.mark.harness
async def test_mini_swe_agent_whose_prompt_no_longer_fits_was_cut_short(served: Served, attempted: Attempted):
    harness = option("mini_swe_agent")
    harness.prepare()
    error = {"message": "This model's maximum context length is 3 tokens.", "code": "context_length_exceeded"}
    async with served({"status": 400, "body": {"error": error}}) as model:
        attempt = await attempted(harness, model)
    assert (attempt.finished.code, len(model.bodies)) == (1, 1)
    assert harness.outcome(attempt.finished) is Outcome.TRUNCATED


CLIENTS = {
    "claude_code": ("Read", "Write"),
    "codex": ("exec_command", "apply_patch"),
    "mini_swe_agent": ("bash", "bash"),
    "openclaw": ("read", "write"),
}
"""Real clients, and what each calls the tools that read and write."""
TASK = {
    "id": "double",
    "instruction": "Write twice the number in half.txt to whole.txt, on a line of its own.",
    "files": {"half.txt": "21\n"},
    "check": {"script": "printf '42\\n' | cmp -s - whole.txt && echo 1 || echo 0"},
    "solution": [["read", {"path": "half.txt"}], ["write", {"path": "whole.txt", "content": "42\n"}]],
    "split": "train",
}


WAYS = ("base_url", "interception")
OWN_EACH_TIME = re.compile(r"\[\w{3} \d{4}-\d\d-\d\d \d\d:\d\d UTC\]|session(Id)?=[\w:-]+")
"""What OpenClaw says to the model that is another in every rollout."""


@pytest.fixture(scope="module")
def through_the_boundary(
    tmp_path_factory: pytest.TempPathFactory, whole_run_in: Callable[..., subprocess.CompletedProcess[str]]
) -> dict[tuple[str, str], Rollout]:
    """A rollout of each real client by each way in; those of one way are of one run."""
    found: dict[tuple[str, str], Rollout] = {}
    for way in WAYS:
        folder = tmp_path_factory.mktemp(way)
        (folder / "tasks.jsonl").write_text(json.dumps(TASK) + "\n")
        each = [f"harness.{name}.{word}" for name in CLIENTS for word in ("weight=1", f"way_in={way}")]
        done = whole_run_in(
            folder, "model=scripted", f"harness=[{','.join(CLIENTS)}]", "taskset=jsonl", "taskset.path=tasks.jsonl",
            "steps=1", f"num_tasks={len(CLIENTS)}", "group_size=1", "eval.num_tasks=0", "logger=[jsonl]",
            "hydra.run.dir=run", *each,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found |= {(rollout.harness, way): rollout for rollout in RunFolder(path=folder / "run").rollouts(0)}
    return found


@pytest.mark.harness
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_real_client_does_a_task_of_two_tools_through_the_boundary(
    through_the_boundary: dict[tuple[str, str], Rollout], client: str, way: str
):
    rollout = through_the_boundary[client, way]
    assert (rollout.outcome, rollout.reward) == (Outcome.COMPLETED, 1.0), rollout.reason
    assert rollout.facts["capture"]["blocked"] == {}, "it wanted more than its model"
    assert [(call.cause, call.kind) for call in rollout.calls] == [
        ("root", "main"),
        ("continue", "main"),
        ("continue", "main"),
    ]
    said = [TOKENIZER.decode(call.sampled_ids) for call in rollout.calls]
    assert [f'"name": "{tool}"' in text for tool, text in zip(CLIENTS[client], said, strict=False)] == [True, True]
    prompt = TOKENIZER.decode(rollout.calls[2].prompt_ids)
    assert all(text in prompt for text in said[:2])
    assert "21" in prompt


@pytest.mark.harness
@pytest.mark.parametrize("client", CLIENTS)
def test_a_real_client_tells_the_model_the_same_by_both_ways_in(
    through_the_boundary: dict[tuple[str, str], Rollout], client: str
):
    first = [TOKENIZER.decode(through_the_boundary[client, way].calls[0].prompt_ids) for way in WAYS]
    told, intercepted = (OWN_EACH_TIME.sub("", text) for text in first)
    assert told == intercepted


@pytest.mark.harness
def test_a_configuration_that_the_harness_refuses_is_found_when_it_is_prepared():
    files = {"~/openclaw.json": {"nonsense": True}}
    harness = option("openclaw", files=files)
    with pytest.raises(Exception, match="nonsense"):
        harness.prepare()
    assert harness.prepared() is not None
