import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from dialect_harness import DIALECTS
from played import READ, RENDERING, STOP, TOKENIZER, WRITE, asked

from clawexp.capture.boundary import boundary
from clawexp.capture.raw import read_raw
from clawexp.engine.flaws import Flaws
from clawexp.engine.script import WRONG
from clawexp.engine.scripted import Scripted, ScriptedClient
from clawexp.engine.tools import ToolCall
from clawexp.errors import EngineError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.protocols import TaskAware
from clawexp.records import Sandbox, Task, Verdict
from clawexp.run_folder import RunFolder
from clawexp.spec import CaptureOptions, Model

TEXT = {"content": WRITE[1]["content"]}
CAPTURE = CaptureOptions(
    temperature=1.0,
    max_calls=80,
    engine_patience_s=2.0,
    engine_timeout_s=120,
    fsync=False,
    workers=1,
    allow_hosts=(),
    cache=False,
    keep_raw=False,
    rules={},
)


class NoGrader:
    async def grade(self, sandbox: Sandbox) -> Verdict:
        raise AssertionError


NO_FLAWS = {"wrong": 0.0, "malformed": 0.0, "empty": 0.0, "cut": 0.0, "faults": 0.0}
MANY_FLAWS = {"wrong": 0.2, "malformed": 0.15, "empty": 0.15, "cut": 0.15, "faults": 0.5}


def engine(*calls: ToolCall, flaws: Mapping[str, float] = NO_FLAWS) -> Scripted:
    numbers = {"slots": 2, "prefill_chunk": 256, "deterministic": False, "threads": 1, "start_s": 300}
    return Scripted(calls=calls, flaws=Flaws(**flaws), **numbers)  # pyright: ignore[reportArgumentType]


def model(rendering: str = "qwen3") -> Model:
    return Model(
        name="scripted",
        path="package:tiny",
        rendering=rendering,  # pyright: ignore[reportArgumentType]
        context=2048,
        max_tokens=512,
        source=None,
        engine=engine(),
    )


def task(instruction: str, *oracle: ToolCall) -> Task:
    return Task(id="t", instruction=instruction, files={}, grader=NoGrader(), split="train", oracle=oracle)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ScriptedClient]:
    async with engine().serve(model(), 0, tmp_path) as served:
        assert isinstance(served, ScriptedClient)
        yield served


async def test_what_is_said_is_the_script_and_its_logprobs_are_the_models(client: ScriptedClient) -> None:
    assert isinstance(client, TaskAware)
    await client.expect([task("Write it.", WRITE)])
    prompt = asked("Write it.")
    got = await client.generate(prompt, temperature=1.0, max_tokens=512, stop_ids=[STOP], key="a")
    assert RENDERING.parse(got.ids).tool_calls[0].arguments["content"] == WRITE[1]["content"]
    assert (got.finish_reason, got.ids[-1]) == ("stop", STOP)
    scored = (await client.score([*prompt, *got.ids])).logprobs[len(prompt) - 1 :]
    assert max(abs(one - other) for one, other in zip(got.logprobs, scored, strict=True)) < 1e-4
    assert len(set(got.logprobs)) > len(got.logprobs) // 2, "a made-up constant"

    hot = await client.generate(prompt, temperature=5.0, max_tokens=512, stop_ids=[STOP], key="b")
    assert hot.ids == got.ids
    assert hot.logprobs != got.logprobs, "the temperature is part of the distribution"
    again = await client.generate(prompt, temperature=1.0, max_tokens=512, stop_ids=[STOP], key="c")
    assert max(abs(one - other) for one, other in zip(again.logprobs, got.logprobs, strict=True)) < 1e-4


async def test_a_long_answer_is_cut_as_any_other(client: ScriptedClient) -> None:
    await client.expect([task("Write it.", WRITE)])
    got = await client.generate(asked("Write it."), temperature=1.0, max_tokens=7, stop_ids=[STOP], key="a")
    assert (got.finish_reason, len(got.ids)) == ("length", 7)


async def test_weights_that_are_loaded_show_in_the_spans(client: ScriptedClient) -> None:
    await client.load(checkpoint_folder("package:tiny"), 4)
    got = await client.generate(asked("Hello."), temperature=1.0, max_tokens=99, stop_ids=[STOP], key="a")
    assert TOKENIZER.decode(got.ids[:-1]) == "Done."
    assert [span.version for span in got.spans] == [4]


async def test_what_cannot_be_played_is_an_engine_error_that_says_why(client: ScriptedClient) -> None:
    with pytest.raises(EngineError, match="same instruction"):
        await client.expect([task("Same.", WRITE), task("Same.")])
    await client.expect([task("Run it.", ("exec", {"command": "make"}))])
    with pytest.raises(EngineError, match="'exec', and the harness offers Read, Write"):
        await client.generate(asked("Run it."), temperature=1.0, max_tokens=99, stop_ids=[STOP], key="a")


def test_a_model_whose_prompts_have_another_form_is_refused() -> None:
    reason = engine().refuses(model("template"))
    assert reason is not None
    assert "rendering=qwen3" in reason
    assert engine().refuses(model()) is None


async def test_all_dialects_play_a_solution_to_its_end_whatever_goes_wrong_and_see_no_fault(tmp_path: Path) -> None:
    flawed = engine(flaws=MANY_FLAWS)
    served = replace(model(), context=8192, engine=flawed)
    verdicts: Counter[str] = Counter()
    wrong = 0
    async with (
        flawed.serve(served, 0, tmp_path) as client,
        boundary(CAPTURE, served, client.url, client.key, tmp_path) as live,
        aiohttp.ClientSession() as session,
    ):
        assert isinstance(client, TaskAware)
        await client.expect([task("Copy a.txt to b.txt.", READ, WRITE)])
        for name, dialect in DIALECTS.items():
            key = await live.open(name, seed=1)
            port = live.door(name).port
            calls = await dialect(session, f"http://127.0.0.1:{port}", key).converse("Copy a.txt to b.txt.")
            wrong += sum(WRONG in call[1].values() for call in calls)
            right = [call for call in calls if WRONG not in call[1].values()]
            assert right == [("Read", {"file_path": "a.txt"}), ("Write", {"file_path": "b.txt", **TEXT})], name
            closed = await live.close(name)
            assert closed.counts["engine_faults"] == closed.counts["capture_faults"] == 0
            assert {call.dialect for call in closed.calls} == {name}
            verdicts.update(call.verdict for call in closed.calls)
            verdicts["empty"] += sum(len(call.sampled_ids) == 1 for call in closed.calls)
    assert wrong
    assert min(verdicts[kind] for kind in ("tool_calls", "text", "malformed", "cut", "empty")) > 0, verdicts
    # The engine's own view: half of the generations needed a second try.
    assert "fails on purpose" in (tmp_path / "capture.log").read_text()


def test_a_whole_run_ends_well_with_all_that_can_go_wrong(
    whole_run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    flaws = [f"model.engine.flaws.{name}={share}" for name, share in MANY_FLAWS.items()]
    small = ("steps=1", "num_tasks=4", "group_size=2", "eval.num_tasks=0", "logger=[jsonl]", "capture.keep_raw=true")
    done = whole_run("model=scripted", *small, *flaws)
    assert done.returncode == 0, done.stderr
    (folder,) = [RunFolder(path=path.parent) for path in tmp_path.glob("runs/*/*/metrics.jsonl")]
    rollouts = list(folder.rollouts(0))
    assert len(rollouts) == 8
    assert {rollout.outcome for rollout in rollouts} <= {"completed", "truncated", "parse_fault", "policy_fault"}
    assert len({rollout.outcome for rollout in rollouts}) > 1
    for rollout in rollouts:
        counts = rollout.facts["capture"]
        assert counts["engine_faults"] == counts["capture_faults"] == counts["refused"] == counts["left"] == 0
        raw = list(read_raw(folder.calls / f"{rollout.id}.raw"))
        assert [each.call_id for each in raw] == [call.call_id for call in rollout.calls]
        assert {each.status for each in raw} == {200}
        assert rollout.facts["harness"]["turns"] == len(rollout.calls) == counts["calls"]


def test_a_whole_run_solves_every_task(whole_run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path):
    done = whole_run("model=scripted", "steps=1", "num_tasks=4", "group_size=2", "eval.num_tasks=2", "logger=[jsonl]")
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    values = {key: value for line in metrics.read_text().splitlines() for key, value in json.loads(line).items()}
    assert (values["reward/mean"], values["eval/score"], values["eval/without_verdict"]) == (1, 1, 0)
