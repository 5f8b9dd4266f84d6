"""Orchestration of rollouts, over a small world of scripted sandboxes, harnesses and calls."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from clawexp.admission import MemoryGate, available_mb
from clawexp.attempt import Attempt
from clawexp.engine.embedded import Embedded
from clawexp.errors import CaptureError, ClawexpError, EngineError, HarnessError, JournalError, RuntimeFault
from clawexp.outcome import Credit, Outcome
from clawexp.protocols import WayIn
from clawexp.records import (
    Call,
    Command,
    Door,
    Finished,
    Heard,
    Launch,
    Link,
    Needs,
    Owner,
    ParseVerdict,
    Rollout,
    Sandbox,
    Task,
    Verdict,
)
from clawexp.rollout import Site, gather
from clawexp.spec import Model, RolloutOptions

CREDIT: Mapping[Outcome, Credit] = dict.fromkeys(Outcome, Credit.EXCLUDE) | {
    Outcome.COMPLETED: Credit.REWARD,
    Outcome.TRUNCATED: Credit.REWARD,
    Outcome.PARSE_FAULT: Credit.REWARD,
    Outcome.POLICY_FAULT: Credit.REWARD,
    Outcome.REWARD_HACK: Credit.ZERO,
}
FOREVER_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """What happens in one rollout, stage by stage; an exception is raised where it stands."""

    sandbox: ClawexpError | None = None
    sandbox_s: float = 0.0
    harness: ClawexpError | OSError | None = None
    harness_s: float = 0.0
    code: int = 0
    timed_out: bool = False
    named: Outcome | None = None
    """What the harness says of its exit status."""
    calls: Sequence[ParseVerdict] = ("tool_calls", "text")
    counts: Mapping[str, int] = field(default_factory=dict)
    close: ClawexpError | None = None
    close_s: float = 0.0
    score: float = 0.75
    grader: Exception | None = None
    grade_s: float = 0.0


@dataclass
class World:
    """Runtime and boundary at once: plays each rollout's script and notes what it sees."""

    script: Callable[[str], Script]
    certificate: bytes | None = None
    rendering: str = "qwen3"
    begun: list[str] = field(default_factory=list)
    """Rollouts whose sandbox was asked for, in order."""
    inside: int = 0
    most_inside: int = 0
    three_inside: asyncio.Event = field(default_factory=asyncio.Event)
    acts: Counter[str] = field(default_factory=Counter)
    seeds: dict[str, int] = field(default_factory=dict)

    @asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        script = self.script(owner.rollout_id)
        self.begun.append(owner.rollout_id)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        if self.inside == 3:
            self.three_inside.set()
        try:
            await asyncio.sleep(script.sandbox_s)
            if script.sandbox:
                raise script.sandbox
            yield Place(owner.rollout_id, script)
        finally:
            self.inside -= 1

    def door(self, rollout_id: str) -> Door:
        return Door(socket=Path("/nowhere"), port=1)

    async def open(self, rollout_id: str, seed: int, temperature: float | None = None) -> str:
        self.acts["open"] += 1
        self.seeds[rollout_id] = seed
        return f"sk-{rollout_id}"

    async def close(self, rollout_id: str) -> "Settled":
        self.acts["close"] += 1
        script = self.script(rollout_id)
        await asyncio.sleep(script.close_s)
        if script.close:
            raise script.close
        calls = tuple(call(rollout_id, position, verdict) for position, verdict in enumerate(script.calls))
        return Settled(calls=calls, counts={"calls": len(calls), **script.counts})


@dataclass(frozen=True, kw_only=True)
class Settled:
    calls: tuple[Call, ...]
    counts: Mapping[str, Any]


class Place:
    """A sandbox in which the script is played."""

    workspace = "/work"
    home = "/home"
    python = "python3"

    def __init__(self, rollout_id: str, script: Script) -> None:
        self.id = rollout_id
        self.script = script
        self.stopped = False
        self.facts: Mapping[str, Any] = {"proxy_url": "http://127.0.0.1:1", "isolation": "none"}

    async def stop(self) -> None:
        self.stopped = True

    async def snapshot(self) -> str:
        raise NotImplementedError

    async def reset(self, to: str | None = None) -> None:
        raise NotImplementedError

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        await asyncio.sleep(self.script.harness_s)
        if self.script.harness:
            raise self.script.harness
        return Finished(
            code=self.script.code,
            stdout=b"",
            stderr=b"the cause stands here",
            wall_s=0.0,
            timed_out=self.script.timed_out,
        )

    async def put(self, files: Mapping[str, bytes]) -> None:
        assert set(files) == {"~/key"}

    async def get(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def files(self) -> dict[str, int]:
        return {}


class Grading:
    """A grader that finds what the script says."""

    async def grade(self, sandbox: Sandbox) -> Verdict:
        assert isinstance(sandbox, Place)
        assert sandbox.stopped, "nothing of the harness is left when a grader looks"
        await asyncio.sleep(sandbox.script.grade_s)
        if sandbox.script.grader:
            raise sandbox.script.grader
        return Verdict(score=sandbox.script.score)


@dataclass(kw_only=True)
class Scripted:
    """A harness that is its world's script."""

    world: World
    memory_mb: int = 1
    num_tasks: int = 1
    eval_tasks: int = 1
    weight: float | None = None
    min_context: int = 1
    dialect: str = "openai_chat"
    way_in: WayIn = "base_url"
    group_size: int = 1

    def needs(self) -> Needs:
        return Needs(memory_mb=self.memory_mb)

    def prepared(self) -> str | None:
        return None

    def prepare(self) -> None: ...

    def launch(self, task: Task, link: Link, sandbox: Sandbox) -> Launch:
        return Launch(command=Command(argv=("harness",)), files={"~/key": link.key.encode()})

    def outcome(self, finished: Finished) -> Outcome | None:
        return self.world.script("any-0").named

    def counts(self, finished: Finished) -> Mapping[str, float]:
        return {"turns": 2.0}


def call(rollout_id: str, position: int, verdict: ParseVerdict) -> Call:
    return Call(
        rollout_id=rollout_id,
        call_id=f"{rollout_id}/{position}",
        position=position,
        dialect="openai_chat",
        kind="main",
        cause="root" if position == 0 else "continue",
        parent=None,
        shared=0,
        prompt_ids=(1,),
        sampled_ids=(2,),
        logprobs=(-0.5,),
        spans=(),
        finish_reason="stop",
        verdict=verdict,
        requested={},
        submitted={},
    )


def options(**changes: Any) -> RolloutOptions:
    plain = {"max_concurrency": 8, "memory_share": 0.5, "retries": 0, "max_capture_faults": 1.0}
    limits = {"sandbox_s": 60.0, "settle_s": 60.0, "grade_s": 60.0}
    return RolloutOptions(**{**plain, **limits, **changes})


def site(world: World, tmp_path: Path, credit: Mapping[Outcome, Credit] = CREDIT, **changes: Any) -> Site:
    chosen = options(**changes)
    engine = Embedded(slots=1, prefill_chunk=16, deterministic=False, threads=1, start_s=1.0)
    return Site(
        run_id="run",
        root=tmp_path,
        runtime=world,
        boundary=world,
        model=Model(name="m", path="/m", rendering="qwen3", context=8, max_tokens=4, source=None, engine=engine),
        options=chosen,
        credit=credit,
        gate=MemoryGate(chosen.max_concurrency, chosen.memory_share),
    )


def attempts(world: World, count: int = 1, memory_mb: int = 1) -> list[Attempt]:
    task = Task(id="t", instruction="Do it.", files={}, grader=Grading(), split="train")
    harness = Scripted(world=world, memory_mb=memory_mb)
    return [
        Attempt(task=task, harness_name="scripted", harness=harness, step=3, number=number, seed=100 + number)
        for number in range(count)
    ]


async def one(script: Script, tmp_path: Path, **changes: Any) -> Rollout:
    """The rollout that a script comes to."""
    world = World(lambda _: script)
    (rollout,) = await gather(attempts(world), site(world, tmp_path, **changes))
    assert world.inside == 0
    return rollout


async def test_a_rollout_that_completes_has_its_graders_reward_its_calls_and_its_times(tmp_path: Path) -> None:
    rollout = await one(Script(), tmp_path)
    assert (rollout.outcome, rollout.reward, rollout.reason) == (Outcome.COMPLETED, 0.75, "")
    assert [each.position for each in rollout.calls] == [0, 1]
    assert set(rollout.times) == {"sandbox", "harness", "settle", "grade", "remove"}
    assert rollout.facts["harness"] == {"turns": 2.0}
    assert rollout.facts["capture"]["calls"] == 2


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (Script(timed_out=True, code=-9), Outcome.TRUNCATED),
        (Script(counts={"final_answers": 1}), Outcome.TRUNCATED),
        (Script(named=Outcome.TRUNCATED, code=3), Outcome.TRUNCATED),
        (Script(calls=("tool_calls", "cut")), Outcome.TRUNCATED),
        (Script(calls=("malformed",), code=4), Outcome.PARSE_FAULT),
        (Script(named=Outcome.POLICY_FAULT, code=4), Outcome.POLICY_FAULT),
        (Script(calls=("malformed", "text")), Outcome.COMPLETED),
    ],
)
async def test_what_the_model_brought_about_is_graded(script: Script, outcome: Outcome, tmp_path: Path) -> None:
    rollout = await one(script, tmp_path)
    assert (rollout.outcome, rollout.reward) == (outcome, 0.75)
    assert rollout.verdict == Verdict(score=0.75)


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        (Script(calls=(), code=0), Outcome.HARNESS_FAULT, "no model call and ended with 0"),
        (Script(calls=(), code=-9, timed_out=True), Outcome.HARNESS_FAULT, "the cause stands here"),
        (Script(calls=(), timed_out=True, counts={"left": 1}), Outcome.ENGINE_FAULT, "first model call had no answer"),
        (Script(code=1), Outcome.HARNESS_FAULT, "exit status 1: the cause stands here"),
        (Script(harness=HarnessError("no settings")), Outcome.HARNESS_FAULT, "no settings"),
        (Script(named=Outcome.HARNESS_FAULT, code=7), Outcome.HARNESS_FAULT, "exit status 7"),
        (Script(sandbox=RuntimeFault("no room")), Outcome.RUNTIME_FAULT, "no room"),
        (Script(sandbox_s=FOREVER_S), Outcome.RUNTIME_FAULT, "no sandbox within 0.1 s"),
        (Script(harness=RuntimeFault("it died")), Outcome.RUNTIME_FAULT, "it died"),
        (Script(harness=OSError(28, "disk full")), Outcome.RUNTIME_FAULT, "disk full"),
        (Script(counts={"engine_faults": 2}), Outcome.ENGINE_FAULT, "failed 2 model calls"),
        (Script(close=EngineError("gone")), Outcome.ENGINE_FAULT, "gone"),
        (Script(counts={"capture_faults": 1}), Outcome.CAPTURE_FAULT, "1 model calls could not be captured"),
        (Script(close=CaptureError("no answer")), Outcome.CAPTURE_FAULT, "no answer"),
        (Script(close=JournalError("bad line")), Outcome.CAPTURE_FAULT, "bad line"),
        (Script(close_s=FOREVER_S), Outcome.CAPTURE_FAULT, "not in the journal within 0.1 s"),
        (Script(harness=RuntimeFault("x"), close=CaptureError("first")), Outcome.CAPTURE_FAULT, "first"),
        (Script(grader=OSError("unreadable")), Outcome.GRADER_FAULT, "unreadable"),
        (Script(grader=ValueError("odd")), Outcome.GRADER_FAULT, "odd"),
        (Script(grader=KeyError("row")), Outcome.GRADER_FAULT, "row"),
        (Script(grade_s=FOREVER_S), Outcome.GRADER_FAULT, "no verdict within 0.1 s"),
        (Script(score=math.nan), Outcome.GRADER_FAULT, "not in [0, 1]"),
        (Script(score=1.5), Outcome.GRADER_FAULT, "not in [0, 1]"),
    ],
)
async def test_what_the_model_did_not_bring_about_has_no_reward(
    script: Script, outcome: Outcome, reason: str, tmp_path: Path
) -> None:
    rollout = await one(script, tmp_path, sandbox_s=0.1, settle_s=0.1, grade_s=0.1)
    assert (rollout.outcome, rollout.reward, rollout.verdict) == (outcome, None, None)
    assert reason in rollout.reason


async def test_the_table_decides_what_an_outcome_is_worth(tmp_path: Path) -> None:
    rollout = await one(Script(named=Outcome.REWARD_HACK, code=9), tmp_path)
    assert (rollout.outcome, rollout.reward) == (Outcome.REWARD_HACK, 0.0)
    zero_for_cut = {**CREDIT, Outcome.TRUNCATED: Credit.ZERO}
    assert (await one(Script(timed_out=True), tmp_path, credit=zero_for_cut)).reward == 0.0


async def test_a_faulty_rollout_keeps_the_calls_that_were_captured(tmp_path: Path) -> None:
    assert len((await one(Script(harness=RuntimeFault("it died")), tmp_path)).calls) == 2
    assert len((await one(Script(grader=ValueError("odd")), tmp_path)).calls) == 2


async def test_no_more_rollouts_than_allowed_run_at_once_and_results_keep_their_order(tmp_path: Path) -> None:
    def slowest_first(rollout_id: str) -> Script:
        return Script(harness_s=0.02 * (9 - int(rollout_id.rsplit("-", 1)[1])))

    world = World(slowest_first)
    rollouts = await gather(attempts(world, 9), site(world, tmp_path, max_concurrency=3))
    assert world.most_inside == 3
    assert [rollout.number for rollout in rollouts] == list(range(9))
    assert [rollout.seed for rollout in rollouts] == [100 + number for number in range(9)]


async def test_two_harnesses_that_do_not_fit_into_memory_together_run_one_after_the_other(tmp_path: Path) -> None:
    world = World(lambda _: Script(harness_s=0.02))
    most_of_the_share = round(0.6 * 0.5 * available_mb())
    rollouts = await gather(attempts(world, 4, memory_mb=most_of_the_share), site(world, tmp_path))
    assert [rollout.outcome for rollout in rollouts] == [Outcome.COMPLETED] * 4
    assert world.most_inside == 1


async def test_one_harness_runs_even_if_it_needs_more_than_there_is(tmp_path: Path) -> None:
    world = World(lambda _: Script(harness_s=0.02))
    rollouts = await gather(attempts(world, 3, memory_mb=10 * available_mb()), site(world, tmp_path))
    assert [rollout.outcome for rollout in rollouts] == [Outcome.COMPLETED] * 3
    assert world.most_inside == 1


async def test_an_outcome_that_is_to_be_retried_is_made_again_under_a_fresh_id(tmp_path: Path) -> None:
    world = World(lambda rollout_id: Script() if rollout_id.endswith("-r1") else Script(sandbox=RuntimeFault("no")))
    credit = {**CREDIT, Outcome.RUNTIME_FAULT: Credit.RETRY}
    (rollout,) = await gather(attempts(world), site(world, tmp_path, credit, retries=2))
    assert world.begun == ["00003-t-scripted-0", "00003-t-scripted-0-r1"]
    assert (rollout.id, rollout.outcome, rollout.reward) == ("00003-t-scripted-0-r1", Outcome.COMPLETED, 0.75)
    assert (rollout.number, rollout.seed) == (0, 100)
    assert rollout.retried == (Outcome.RUNTIME_FAULT,)


async def test_retries_end_and_leave_the_last_outcome_without_a_reward(tmp_path: Path) -> None:
    world = World(lambda _: Script(harness=RuntimeFault("it died")))
    credit = {**CREDIT, Outcome.RUNTIME_FAULT: Credit.RETRY}
    (rollout,) = await gather(attempts(world), site(world, tmp_path, credit, retries=2))
    assert len(world.begun) == len(set(world.begun)) == 3
    assert (rollout.outcome, rollout.reward) == (Outcome.RUNTIME_FAULT, None)


async def test_too_many_capture_faults_end_the_run_and_few_do_not(tmp_path: Path) -> None:
    def faulty(number: int) -> Callable[[str], Script]:
        lost = Script(close=CaptureError("lost a call"))
        return lambda rollout_id: lost if int(rollout_id.rsplit("-", 1)[1]) < number else Script()

    world = World(faulty(2))
    rollouts = await gather(attempts(world, 10), site(world, tmp_path, max_capture_faults=0.2))
    assert Counter(rollout.outcome for rollout in rollouts) == {Outcome.COMPLETED: 8, Outcome.CAPTURE_FAULT: 2}
    world = World(faulty(3))
    with pytest.raises(CaptureError, match=r"3 of 10 rollouts .* the first, 00003-t-scripted-0: .*lost a call"):
        await gather(attempts(world, 10), site(world, tmp_path, max_capture_faults=0.2))


async def test_an_outcome_that_aborts_ends_the_run(tmp_path: Path) -> None:
    world = World(lambda _: Script(code=1))
    credit = {**CREDIT, Outcome.HARNESS_FAULT: Credit.ABORT}
    with pytest.raises(ClawexpError, match="00003-t-scripted-0 ended with harness_fault, which aborts: exit status 1"):
        await gather(attempts(world), site(world, tmp_path, credit))


@pytest.mark.parametrize(
    "script",
    [
        Script(sandbox_s=FOREVER_S),
        Script(harness_s=FOREVER_S),
        Script(harness_s=FOREVER_S, close=CaptureError("the boundary went first")),
        Script(harness_s=FOREVER_S, close_s=FOREVER_S),
        Script(close_s=FOREVER_S),
        Script(grade_s=FOREVER_S),
    ],
)
async def test_cancellation_ends_every_rollout_at_once_and_closes_its_sandbox(script: Script, tmp_path: Path) -> None:
    world = World(lambda _: script)
    credit = {**CREDIT, Outcome.RUNTIME_FAULT: Credit.RETRY, Outcome.CAPTURE_FAULT: Credit.RETRY}
    at = site(world, tmp_path, credit, retries=5, max_concurrency=3)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        gathering = group.create_task(_gathered(gather(attempts(world, 6), at)))
        await world.three_inside.wait()
        await asyncio.sleep(0.05)
        gathering.cancel()
    assert gathering.cancelled()
    assert world.inside == 0
    assert len(world.begun) == 3


async def _gathered(work: Awaitable[object]) -> None:
    await work


async def test_an_error_that_nobody_foresaw_is_not_hidden_as_an_outcome(tmp_path: Path) -> None:
    world = World(lambda _: Script())

    class Broken(Scripted):
        def launch(self, task: Task, link: Link, sandbox: Sandbox) -> Launch:
            raise AssertionError("a fault of our own")

    (attempt,) = attempts(world)
    with pytest.raises(ExceptionGroup) as raised:
        await gather([replace(attempt, harness=Broken(world=world))], site(world, tmp_path))
    assert raised.group_contains(AssertionError, match="a fault of our own")
    assert world.inside == 0


def test_ids_name_the_step_the_task_the_harness_and_the_attempt() -> None:
    (attempt,) = attempts(World(lambda _: Script()))
    assert attempt.rollout_id == "00003-t-scripted-0"
    assert replace(attempt, evaluation=True, retry=2).rollout_id == "eval-00003-t-scripted-0-r2"


async def test_nothing_to_make_is_no_error(tmp_path: Path) -> None:
    world = World(lambda _: Script())
    assert await gather([], site(world, tmp_path, max_capture_faults=0.0)) == []
