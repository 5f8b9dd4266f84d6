import json
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from played import RENDERING, STOP, TOKENIZER, WRITE, asked

from clawexp.engine.scripted import Scripted, ScriptedClient
from clawexp.engine.tools import ToolCall
from clawexp.errors import EngineError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.protocols import TaskAware
from clawexp.records import Sandbox, Task, Verdict
from clawexp.spec import Model


class NoGrader:
    async def grade(self, sandbox: Sandbox) -> Verdict:
        raise AssertionError


def engine(*calls: ToolCall) -> Scripted:
    numbers = {"slots": 2, "prefill_chunk": 256, "deterministic": False, "threads": 1, "start_s": 300}
    return Scripted(calls=calls, **numbers)  # pyright: ignore[reportArgumentType]


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
    scored = (await client.score([*prompt, *got.ids]))[len(prompt) - 1 :]
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


def test_a_whole_run_solves_every_task(whole_run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path):
    done = whole_run("model=scripted", "steps=1", "num_tasks=4", "group_size=2", "eval.num_tasks=2", "logger=[jsonl]")
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    values = {key: value for line in metrics.read_text().splitlines() for key, value in json.loads(line).items()}
    assert (values["reward/mean"], values["eval/score"], values["eval/without_verdict"]) == (1, 1, 0)
