"""The engine URL contract over the real CPU build of vLLM: one server for all tests, in the hands of a driver that is
killed in the end; and a whole run."""

import asyncio
import contextlib
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from tiny_engine import CONTEXT, Checkpoint, prompt

from clawexp.commands.compose import build, composed
from clawexp.engine.client import EngineClient, Generation
from clawexp.engine.vllm import KEY_VARIABLE, OWN_LOAD, arguments
from clawexp.engine.vllm_client import VllmClient
from clawexp.errors import ConfigError, EngineError
from clawexp.records import Span

pytestmark = pytest.mark.vllm

TEMPERATURE = 0.7
TOLERANCE = 1e-5
START_S = 900
"""Where much else runs; alone it takes half a minute."""
OVERRIDES = ("model/engine=vllm", "model.engine.device=cpu", f"model.engine.start_s={START_S}")
EOS = 3
"""The checkpoints name it, and no call does."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    """Two of one shape, of a head size that the CPU build has a kernel for."""
    folder = tmp_path_factory.mktemp("checkpoints")
    made = [Checkpoint(folder / str(seed), seed, head_dim=32) for seed in (0, 1)]
    for checkpoint in made:
        file = checkpoint.folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": EOS}))
        sampling = {"top_k": 2, "temperature": 0.1, "eos_token_id": [EOS, EOS + 1]}
        (checkpoint.folder / "generation_config.json").write_text(json.dumps(sampling))
    return made


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A process that serves by vLLM."""

    process: subprocess.Popen[str]
    url: str
    key: str


@pytest.fixture(scope="module")
def driver(checkpoints: list[Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("vllm")
    overrides = [*OVERRIDES, f"model.path={checkpoints[0].folder}"]
    program = textwrap.dedent(
        f"""
        import asyncio, json
        from dataclasses import replace
        from pathlib import Path
        from clawexp.commands.compose import build, composed

        async def main():
            model = replace(build(composed({overrides!r})).model, context={CONTEXT})
            async with model.engine.serve(model, 0, Path({str(folder)!r})) as client:
                print(json.dumps({{"url": client.url, "key": client.key}}), flush=True)
                await asyncio.sleep(36000)

        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "what went wrong is in what the driver printed"
        yield Driver(process=process, **json.loads(line))
        process.kill()


@pytest.fixture
async def served(driver: Driver, checkpoints: list[Checkpoint]) -> AsyncIterator[VllmClient]:
    """A connection to the server, which has the first checkpoint's weights, as version 1."""
    async with VllmClient(driver.url, driver.key, 120, OWN_LOAD) as client:
        await client.load(checkpoints[0].folder, 1)
        yield client


async def generate(engine: EngineClient, ids: list[int], key: str, max_tokens: int = 12) -> Generation:
    return await engine.generate(ids, temperature=TEMPERATURE, max_tokens=max_tokens, stop_ids=[], key=key)


async def together(engine: EngineClient, prompts: list[list[int]]) -> list[Generation]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(generate(engine, ids, f"call-{number}")) for number, ids in enumerate(prompts)]
    return [task.result() for task in tasks]


def far(checkpoint: Checkpoint, ids: list[int], got: Generation) -> float:
    """Largest distance of a logprob from the reference's."""
    want = checkpoint.logprobs(ids, list(got.ids), TEMPERATURE)
    return max(abs(a - b) for a, b in zip(got.logprobs, want, strict=True))


async def test_logprobs_are_those_of_the_distribution_over_turns_groups_and_loads(
    served: VllmClient, checkpoints: list[Checkpoint]
) -> None:
    first = prompt(0, 50)
    answer = await generate(served, first, "turn-0")
    assert far(checkpoints[0], first, answer) <= TOLERANCE
    second = [*first, *answer.ids, *prompt(1, 9)]
    assert far(checkpoints[0], second, await generate(served, second, "turn-1")) <= TOLERANCE
    shared = prompt(2, 60)
    prompts = [shared] * 5 + [shared[:45] + prompt(3, 20)] + [prompt(4, 3 + n) for n in range(6)]
    for version, checkpoint in ((1, checkpoints[0]), (7, checkpoints[1])):
        await served.load(checkpoint.folder, version)
        assert await served.health() == version
        answers = await together(served, prompts)
        assert max(far(checkpoint, ids, got) for ids, got in zip(prompts, answers, strict=True)) <= TOLERANCE
        assert {got.spans for got in answers} == {(Span(version=version, start=0, end=12),)}
        assert len({got.ids for got in answers[:5]}) > 1, "members of a group must differ"


async def test_scores_are_those_of_the_weights_that_were_loaded_last_the_tied_head_too(
    served: VllmClient, checkpoints: list[Checkpoint]
) -> None:
    ids = prompt(5, 64)
    for version, checkpoint in enumerate((checkpoints[1], checkpoints[0]), start=2):
        await served.load(checkpoint.folder, version)
        scores = (await served.score(ids)).logprobs
        want = checkpoint.logprobs(ids[:1], ids[1:], 1.0)
        assert max(abs(a - b) for a, b in zip(scores, want, strict=True)) <= TOLERANCE


async def test_only_the_stop_ids_of_a_call_end_it(served: VllmClient) -> None:
    ids = prompt(6, 10)
    long = [await generate(served, ids, f"long-{n}", max_tokens=150) for n in range(16)]
    assert {got.finish_reason for got in long} == {"length"}
    assert any(EOS in got.ids for got in long), "the test must have seen one"
    assert len({token for got in long for token in got.ids}) > 200, "the checkpoint's own top_k would leave few ids"
    stops = list(range(256))
    got = await served.generate(ids, temperature=TEMPERATURE, max_tokens=150, stop_ids=stops, key="stopped")
    assert got.finish_reason == "stop"
    assert [token in stops for token in got.ids] == [False] * (len(got.ids) - 1) + [True]


async def test_a_load_in_mid_call_shows_in_its_spans(served: VllmClient, checkpoints: list[Checkpoint]) -> None:
    ids = prompt(7, 20)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(generate(served, ids, "long", max_tokens=170))
        await asyncio.sleep(0.2)
        await served.load(checkpoints[1].folder, 3)
    got = call.result()
    old, new = got.spans
    assert (old.version, new.version, new.end) == (1, 3, 170)
    ends = (old.end, 170)
    for checkpoint, start, end in zip(checkpoints, (0, old.end), ends, strict=True):
        want = checkpoint.logprobs([*ids, *got.ids[:start]], list(got.ids[start:end]), TEMPERATURE)
        assert max(abs(a - b) for a, b in zip(got.logprobs[start:end], want, strict=True)) <= TOLERANCE
    later = [*ids, *got.ids[:100]]
    assert far(checkpoints[1], later, await generate(served, later, "later")) <= TOLERANCE


async def test_a_folder_that_is_no_checkpoint_changes_nothing(
    served: VllmClient, checkpoints: list[Checkpoint], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="no checkpoint"):
        await served.load(tmp_path, 2)
    assert await served.health() == 1
    ids = prompt(8, 30)
    assert far(checkpoints[0], ids, await generate(served, ids, "after")) <= TOLERANCE


async def test_a_client_that_leaves_ends_its_call_and_may_ask_again_under_the_same_key(
    served: VllmClient, checkpoints: list[Checkpoint]
) -> None:
    ids = prompt(9, 30)
    await served.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await generate(served, ids, "gone", max_tokens=150)
    await served.resume()
    assert far(checkpoints[0], ids, await generate(served, ids, "gone")) <= TOLERANCE


async def test_a_prompt_that_fills_the_context_is_refused_and_a_long_answer_is_cut(served: VllmClient) -> None:
    with pytest.raises(EngineError, match="400"):
        await generate(served, prompt(0, CONTEXT), "long")
    got = await generate(served, prompt(0, CONTEXT - 5), "just", max_tokens=64)
    assert (len(got.ids), got.finish_reason) == (5, "length")


async def test_a_stranger_is_refused_on_every_route(served: VllmClient, checkpoints: list[Checkpoint]) -> None:
    async with VllmClient(served.url, "wrong", 30, OWN_LOAD) as stranger:
        for ask in (stranger.health, stranger.pause, stranger.resume):
            with pytest.raises(EngineError, match="401"):
                await ask()
        with pytest.raises(EngineError, match="401"):
            await generate(stranger, [1, 2], "a")
        with pytest.raises(EngineError, match="401"):
            await stranger.load(checkpoints[1].folder, 9)
    async with aiohttp.ClientSession() as session:
        for route in ("/health", "/collective_rpc", "/metrics", "/v1/models"):
            async with session.get(served.url + route) as answer:
                assert answer.status == 401


async def test_a_running_server_is_served_by_its_url(
    served: VllmClient, driver: Driver, checkpoints: list[Checkpoint], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, driver.key)
    model = build(composed(["model/engine=vllm", f"model.engine.url={driver.url}/"])).model
    async with model.engine.serve(model, 0, tmp_path) as engine:
        ids = prompt(10, 30)
        scores = (await engine.score(ids)).logprobs
        want = checkpoints[0].logprobs(ids[:1], ids[1:], 1.0)
        assert max(abs(a - b) for a, b in zip(scores, want, strict=True)) <= TOLERANCE
        assert engine.url == driver.url
    monkeypatch.setenv(KEY_VARIABLE, "wrong")
    with pytest.raises(EngineError, match="401"):
        async with model.engine.serve(model, 0, tmp_path):
            pass


async def test_options_that_vllm_refuses_are_one_error_with_what_it_said(
    checkpoints: list[Checkpoint], tmp_path: Path
) -> None:
    options = [*OVERRIDES, f"model.path={checkpoints[0].folder}", "++model.engine.cpu.options.no_such_option=3"]
    model = build(composed(options)).model
    with pytest.raises(EngineError, match=r"the engine died at its start; (?s:.*)no-such-option"):
        async with model.engine.serve(model, 0, tmp_path):
            pass


async def test_an_interpreter_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    model = build(composed([*OVERRIDES, "model.engine.python=/no/python"])).model
    with pytest.raises(ConfigError, match=r"model\.engine\.python: /no/python"):
        async with model.engine.serve(model, 0, tmp_path):
            pass


def test_an_environment_that_is_not_there_comes_with_the_line_that_makes_it(
    command_line: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = command_line("model/engine=vllm", "--dry-run", XDG_CACHE_HOME=str(tmp_path))
    assert (
        "# would first prepare engine: python -m clawexp prepare model/engine=vllm model.engine.device=" in done.stdout
    )


def test_options_are_written_as_a_command_line_has_them() -> None:
    options = {"max_num_seqs": 4, "eager": True, "async": False, "kind": "x", "left_out": None, "more": {"a": [1]}}
    assert list(arguments(options)) == ["--max-num-seqs=4", "--eager", "--no-async", "--kind=x", '--more={"a": [1]}']


def test_a_run_loads_its_weights_after_every_step(tmp_path: Path) -> None:
    limits = ["harness.builtin.timeout_s=900", "rollout.settle_s=300", "rollout.sandbox_s=300", "rollout.grade_s=300"]
    folder = tmp_path / "run"
    words = [*OVERRIDES, "steps=3", "num_tasks=2", "eval.num_tasks=0", *limits, f"hydra.run.dir={folder}"]
    done = subprocess.run([sys.executable, "-m", "clawexp", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["learner/version"] for row in rows] == [1, 2, 3]
    assert all(0 < row["reward/mean"] <= 1 for row in rows)
    assert all(row["engine/probe_delta"] <= 1e-3 for row in rows)
    assert all(row["learner/delta_logprob_p999"] <= 1e-3 for row in rows)
    assert working_in(tmp_path) == []


def test_all_of_vllm_ends_with_a_driver_that_is_killed(driver: Driver) -> None:
    pids = descendants(driver.process.pid)
    assert len(pids) >= 3, "the one that watches, the server, the engine core"
    driver.process.kill()
    driver.process.wait()
    limit = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert [pid for pid in pids if alive(pid)] == []


def descendants(pid: int) -> list[int]:
    children = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]


def working_in(folder: Path) -> list[int]:
    """Processes of this machine that have this working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
