import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from tiny_engine import CONTEXT, VOCAB, Checkpoint, embedded, model, prompt

from clawexp.engine.client import EngineClient, Generation
from clawexp.errors import ConfigError, EngineError
from clawexp.records import Span

TEMPERATURE = 0.9


async def generate(engine: EngineClient, ids: list[int], key: str, max_tokens: int = 12) -> Generation:
    return await engine.generate(ids, temperature=TEMPERATURE, max_tokens=max_tokens, stop_ids=[], key=key)


async def together(engine: EngineClient, prompts: list[list[int]], max_tokens: int = 12) -> list[Generation]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(generate(engine, ids, f"call-{number}", max_tokens)) for number, ids in enumerate(prompts)
        ]
    return [task.result() for task in tasks]


def exact(checkpoint: Checkpoint, ids: list[int], got: Generation) -> bool:
    want = checkpoint.logprobs(ids, list(got.ids), TEMPERATURE)
    return max(abs(a - b) for a, b in zip(got.logprobs, want, strict=True)) <= 1e-5


async def test_logprobs_are_those_of_the_reference_over_turns_groups_and_loads(checkpoint, other_checkpoint, tmp_path):
    engine = embedded()
    async with engine.serve(model(checkpoint, engine), 0, tmp_path) as served:
        first = prompt(0, 50)
        answer = await generate(served, first, "turn-0")
        assert exact(checkpoint, first, answer)
        second = [*first, *answer.ids, *prompt(1, 9)]
        assert exact(checkpoint, second, await generate(served, second, "turn-1"))
        assert exact(checkpoint, first[:40], await generate(served, first[:40], "rewritten"))

        shared = prompt(2, 60)
        prompts = [shared] * 5 + [shared[:45] + prompt(3, 20)] + [prompt(4, 3 + n) for n in range(6)]
        answers = await together(served, prompts)
        assert all(exact(checkpoint, ids, got) for ids, got in zip(prompts, answers, strict=True))
        assert len({got.ids for got in answers[:5]}) > 1, "members of a group must differ"

        assert await served.health() == 0
        await served.load(other_checkpoint.folder, 7)
        assert await served.health() == 7
        answers = await together(served, prompts)
        assert all(exact(other_checkpoint, ids, got) for ids, got in zip(prompts, answers, strict=True))
        assert answers[0].spans == (Span(version=7, start=0, end=12),)

        scores = (await served.score(shared)).logprobs
        want = other_checkpoint.logprobs(shared[:1], shared[1:], 1.0)
        assert max(abs(a - b) for a, b in zip(scores, want, strict=True)) <= 1e-5


async def test_the_same_key_draws_the_same_ids_and_ends_at_a_stop_id(checkpoint, tmp_path):
    engine = embedded()
    async with engine.serve(model(checkpoint, engine), 0, tmp_path) as served:
        ids = prompt(0, 10)
        first, again, other = [await generate(served, ids, key) for key in ("a", "a", "b")]
        assert first.ids == again.ids != other.ids
        assert (first.finish_reason, len(first.ids)) == ("length", 12)
        stop = first.ids[4]
        stopped = await served.generate(
            ids, temperature=TEMPERATURE, max_tokens=12, stop_ids=[stop, VOCAB - 1], key="a"
        )
        assert stopped.finish_reason == "stop"
        assert stopped.ids == first.ids[: first.ids.index(stop) + 1]


async def test_a_load_in_mid_call_shows_in_its_spans(checkpoint, other_checkpoint, tmp_path):
    engine = embedded()
    async with engine.serve(model(checkpoint, engine), 0, tmp_path) as served:
        ids = prompt(5, 20)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(generate(served, ids, "long", max_tokens=170))
            await until(served, 1)
            await asyncio.sleep(0.02)
            await served.pause()
            await served.load(other_checkpoint.folder, 3)
            await served.resume()
        got = call.result()
        old, new = got.spans
        assert (old.version, new.version, new.end) == (0, 3, len(got.ids))
        want = checkpoint.logprobs(ids, list(got.ids[: old.end]), TEMPERATURE)
        assert max(abs(a - b) for a, b in zip(got.logprobs, want, strict=False)) <= 1e-5
        later = [*ids, *got.ids[:100]]
        assert exact(other_checkpoint, later, await generate(served, later, "later")), "old keys were reused"


async def test_a_client_that_leaves_frees_its_slot(checkpoint, tmp_path):
    engine = embedded(slots=1)
    async with engine.serve(model(checkpoint, engine), 0, tmp_path) as served:
        await served.pause()
        for number in range(2):  # one in the slot, one in the queue
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await generate(served, prompt(number, 30), "gone", max_tokens=150)
        await served.resume()
        async with asyncio.timeout(30):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await generate(served, prompt(3, 30), "gone", max_tokens=170)
            await until(served, 0)
            ids = prompt(4, 30)
            assert exact(checkpoint, ids, await generate(served, ids, "next"))


@pytest.mark.parametrize("name", ["checkpoint", "mixture"])
async def test_deterministic_mode_gives_the_same_bits_at_any_concurrency(name, request, tmp_path):
    checkpoint = request.getfixturevalue(name)
    engine = embedded(deterministic=True, slots=16)
    shared = prompt(0, 41)
    prompts = [shared] * 4 + [prompt(n, 5 + 7 * n) for n in range(1, 15)]
    async with engine.serve(model(checkpoint, engine), 0, tmp_path) as served:
        crowd = await together(served, prompts)
        alone = [await generate(served, ids, f"call-{number}") for number, ids in enumerate(prompts)]
        assert crowd == alone
        for one, other in zip(crowd, alone, strict=True):
            assert (one.experts is None) == (other.experts is None) == (name == "checkpoint")
            if one.experts is not None and other.experts is not None:
                assert np.array_equal(one.experts, other.experts)
        assert exact(checkpoint, shared, crowd[0])


async def test_a_prompt_that_fills_the_context_is_refused_and_a_long_answer_is_cut(checkpoint, tmp_path):
    engine = embedded()
    async with engine.serve(model(checkpoint, engine), 0, tmp_path) as served:
        with pytest.raises(EngineError, match="context_length_exceeded"):
            await generate(served, prompt(0, CONTEXT), "long")
        got = await generate(served, prompt(0, CONTEXT - 5), "just", max_tokens=64)
        assert (len(got.ids), got.finish_reason) == (5, "length")


async def test_a_bad_request_is_told_what_is_wrong(served):
    good = {
        "request_id": "a",
        "token_ids": [1, 2],
        "sampling_params": {"temperature": 1.0, "max_tokens": 1, "stop_token_ids": [], "logprobs": 0},
    }
    wrong: list[tuple[dict, str]] = [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, VOCAB]}, f"{VOCAB} is no id"),
        ({"request_id": None}, "request_id"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"temperature": 0, "max_tokens": 1}}, "temperature"),
        ({"sampling_params": {"temperature": 1.0, "max_tokens": 0}}, "max_tokens"),
        ({"sampling_params": {"temperature": 1.0, "max_tokens": 1, "top_p": 0.9}}, "top_p"),
    ]
    assert (await post(served, good))[0] == 200
    for change, reason in wrong:
        status, text = await post(served, good | change)
        assert (status, reason in text) == (400, True), text


async def test_a_stranger_is_refused_on_every_route(served):
    async with EngineClient(served.url, "wrong", 10) as stranger:
        for ask in (stranger.health, stranger.pause, stranger.resume):
            with pytest.raises(EngineError, match="401"):
                await ask()
        with pytest.raises(EngineError, match="401"):
            await generate(stranger, [1, 2], "a")
        with pytest.raises(EngineError, match="401"):
            await stranger.load(Path("/"), 1)


async def test_weights_that_do_not_fit_change_nothing(served, checkpoint, tmp_path):
    with pytest.raises(EngineError, match="cannot be read"):
        await served.load(tmp_path, 1)
    assert await served.health() == 0
    assert exact(checkpoint, [1, 2, 3], await generate(served, [1, 2, 3], "a"))


async def test_an_engine_that_dies_at_its_start_says_why(checkpoint, tmp_path):
    engine = embedded()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_bytes((checkpoint.folder / "config.json").read_bytes())
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"nothing")
    broken = model(checkpoint, engine)
    object.__setattr__(broken, "path", str(tmp_path / "bad"))
    with pytest.raises(EngineError, match=r"model\.safetensors cannot be read"):
        async with engine.serve(broken, 0, tmp_path):
            pass
    object.__setattr__(broken, "path", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        async with engine.serve(broken, 0, tmp_path):
            pass


def test_the_engine_dies_with_the_process_that_started_it(checkpoint, tmp_path):
    script = textwrap.dedent(f"""
        import asyncio, sys, os
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from clawexp.engine.embedded import Embedded
        from clawexp.spec import Model
        engine = Embedded(slots=1, prefill_chunk=16, deterministic=False, threads=1, start_s=120)
        model = Model(name="tiny", path={str(checkpoint.folder)!r}, rendering="template", context=64,
                      max_tokens=8, source=None, engine=engine)
        async def main():
            async with engine.serve(model, 0, Path({str(tmp_path)!r})):
                children = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text()
                print(children, flush=True)
                await asyncio.sleep(600)
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    for _ in range(200):
        if not alive(child):
            return
        signal.sigtimedwait([], 0.05)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the engine outlived its parent")


async def until(engine: EngineClient, calls: int) -> None:
    """Wait until so many calls are in the engine."""
    headers = {"Authorization": f"Bearer {engine.key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        while True:
            async with session.get(engine.url + "/health") as answer:
                if (await answer.json())["calls"] == calls:
                    return


async def post(engine: EngineClient, body: dict) -> tuple[int, str]:
    headers, url = {"Authorization": f"Bearer {engine.key}"}, engine.url + "/inference/v1/generate"
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as answer:
        return answer.status, await answer.text()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
