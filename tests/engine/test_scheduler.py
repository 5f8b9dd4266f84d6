import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch
from tiny_engine import CONTEXT, Checkpoint, prompt

from clawexp.engine import scheduler as scheduling
from clawexp.engine.decode import Forward
from clawexp.engine.scheduler import Generating, Scheduler
from clawexp.model.decoder import Policy
from clawexp.model.tree_attention import tree_attention
from clawexp.model.tree_plan import blocks_of


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the prompt chunks that were computed."""
    lengths: list[int] = []
    chunk = Forward.chunk

    def counted(self, slot, ids):
        lengths.append(len(ids))
        return chunk(self, slot, ids)

    monkeypatch.setattr(scheduling.Forward, "chunk", counted)
    return lengths


@asynccontextmanager
async def working(checkpoint: Checkpoint, slots: int = 4, prefill_chunk: int = 16) -> AsyncIterator[Scheduler]:
    policy = Policy.load(checkpoint.folder).requires_grad_(False)
    scheduler = Scheduler(
        policy,
        seed=0,
        slots=slots,
        prefill_chunk=prefill_chunk,
        context=CONTEXT,
        deterministic=False,
    )
    async with asyncio.TaskGroup() as group:
        work = group.create_task(scheduler.run())
        yield scheduler
        work.cancel()


async def generate(scheduler: Scheduler, ids: list[int], key: str = "a", max_tokens: int = 8) -> Generating:
    return await scheduler.generate(key, ids, 1.0, max_tokens, [])


async def test_the_next_turn_computes_only_what_is_new(checkpoint, computed):
    async with working(checkpoint) as scheduler:
        first = prompt(0, 60)
        answer = await generate(scheduler, first)
        del computed[:]
        await generate(scheduler, [*first, *answer.ids, *prompt(1, 10)])
    assert sum(computed) == 11  # the last sampled id was never computed


async def test_a_group_computes_its_prompt_once(checkpoint, computed):
    async with working(checkpoint) as scheduler, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(generate(scheduler, prompt(0, 60), str(number)))
    assert sum(computed) == 60 + 3  # and of each other member its last token, for the logits


async def test_more_calls_than_slots_wait_and_are_all_answered(checkpoint):
    async with working(checkpoint, slots=2) as scheduler:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(generate(scheduler, prompt(n, 5 + n), str(n))) for n in range(9)]
        assert [len(task.result().ids) for task in tasks] == [8] * 9
        assert scheduler.busy == 0


async def test_a_long_prompt_does_not_stall_who_is_being_answered(checkpoint, computed):
    async with working(checkpoint) as scheduler, asyncio.TaskGroup() as group:
        short = group.create_task(generate(scheduler, prompt(0, 5), "short"))
        await asyncio.sleep(0)
        long = group.create_task(generate(scheduler, prompt(1, 190), "long"))
        await short
        assert not long.done()
        assert sum(computed) < 5 + 190


async def test_weights_that_come_during_a_prompt_are_used_for_all_of_it(checkpoint, other_checkpoint):
    async with working(checkpoint) as scheduler:
        ids = prompt(0, 150)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(generate(scheduler, ids))
            for _ in range(4):
                await asyncio.sleep(0)
            scheduler.load(Policy.load(other_checkpoint.folder).weights(), 5)
        got = call.result()
        assert got.spans() == [{"version": 5, "start": 0, "end": 8}]
        want = other_checkpoint.logprobs(ids, got.ids, 1.0)
        assert max(abs(a - b) for a, b in zip(got.logprobs, want, strict=True)) <= 1e-5


async def test_a_cancelled_call_leaves_nothing_behind(checkpoint):
    async with working(checkpoint, slots=1) as scheduler:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(generate(scheduler, prompt(n, 30), str(n), 150)) for n in range(3)]
            await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
        assert scheduler.busy == 0
        assert len((await generate(scheduler, prompt(0, 30))).ids) == 8


def chosen_by(policy: Policy, ids: list[int]) -> np.ndarray:
    """The experts of each token, in one pass over all of them."""
    found = np.full((len(ids), policy.shape.layers, 2), -1)
    blocks = blocks_of(np.arange(len(ids)) - 1)

    def note(layer, own):
        found[:, layer] = own
        return own

    with torch.no_grad():
        place = torch.arange(len(ids))
        policy.states(torch.tensor(ids), place, lambda _, q, k, v: tree_attention(q, k, v, blocks, None), False, note)
    return found


async def test_experts_are_told_of_all_that_was_computed_however_it_was(mixture, computed):
    policy = Policy.load(mixture.folder)
    async with working(mixture) as scheduler:
        first = prompt(0, 60)
        answer = await generate(scheduler, first)
        turn = [*first, *answer.ids, *prompt(1, 10)]
        del computed[:]
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(generate(scheduler, turn, str(n))) for n in range(3)]
        assert sum(computed) < len(turn)  # its beginning was held by one slot, and copied to the others
    for asked, call in [(first, answer), *((turn, call.result()) for call in calls)]:
        want = chosen_by(policy, [*asked, *call.ids[:-1]])
        assert call.experts is not None
        assert np.array_equal(call.experts, want)
        assert len(np.unique(want)) == 8
        scored = mixture.logprobs(asked, call.ids, 1.0)
        assert max(abs(a - b) for a, b in zip(call.logprobs, scored, strict=True)) <= 1e-5


async def test_a_dense_model_tells_of_no_experts(checkpoint):
    async with working(checkpoint) as scheduler:
        assert (await generate(scheduler, prompt(0, 60))).experts is None


async def test_a_score_tells_of_experts_too(mixture):
    async with working(mixture) as scheduler:
        ids = prompt(0, 40)
        scored = scheduler.score(ids)
    assert scored.experts is not None
    assert np.array_equal(scored.experts, chosen_by(Policy.load(mixture.folder), ids)[:-1])
    want = mixture.logprobs(ids[:1], ids[1:], 1.0)
    assert max(abs(a - b) for a, b in zip(scored.logprobs, want, strict=True)) <= 1e-5
