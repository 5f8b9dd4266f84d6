"""Tasks x harnesses -> rollouts: each in its own sandbox, through its harness, captured and graded.

A failed rollout is data: an error of clawexp or of the system becomes the outcome of its attempt. What ends the run is
too large a share of capture faults, an outcome that aborts, cancellation, and an error that nobody foresaw.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from clawexp.admission import MemoryGate
from clawexp.attempt import Attempt
from clawexp.capture.way_in import link_to, through_proxy
from clawexp.errors import (
    CaptureError,
    ClawexpError,
    EngineError,
    HarnessError,
    JournalError,
    RuntimeFault,
    TasksetError,
    first_of,
)
from clawexp.outcome import Credit, Outcome
from clawexp.protocols import Runtime
from clawexp.records import Call, Door, Finished, Owner, Rollout, Sandbox, Task, Verdict
from clawexp.spec import Model, RolloutOptions

log = logging.getLogger(__name__)

GRADED = frozenset({Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.PARSE_FAULT, Outcome.POLICY_FAULT})
FAULTS = {
    CaptureError: Outcome.CAPTURE_FAULT,
    JournalError: Outcome.CAPTURE_FAULT,
    EngineError: Outcome.ENGINE_FAULT,
    RuntimeFault: Outcome.RUNTIME_FAULT,
    HarnessError: Outcome.HARNESS_FAULT,
    TasksetError: Outcome.GRADER_FAULT,
}


class Closed(Protocol):
    """What capture knows of a rollout once its last call is in the journal."""

    @property
    def calls(self) -> tuple[Call, ...]: ...
    @property
    def counts(self) -> Mapping[str, Any]: ...


class Boundary(Protocol):
    """The model boundary, as a rollout needs it."""

    @property
    def rendering(self) -> str: ...
    @property
    def certificate(self) -> bytes | None: ...
    def door(self, rollout_id: str) -> Door: ...
    async def open(self, rollout_id: str, seed: int, temperature: float | None = None) -> str: ...
    async def close(self, rollout_id: str) -> Closed: ...


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where the rollouts of a run are made: everything alive that an attempt needs."""

    run_id: str
    root: Path
    """Folder of the host for sandboxes."""
    runtime: Runtime
    boundary: Boundary
    model: Model
    options: RolloutOptions
    credit: Mapping[Outcome, Credit]
    gate: MemoryGate
    expect: Callable[[Sequence[Task]], Awaitable[None]] | None = None
    """Told of tasks before they are tried, where the engine asks for it."""


async def gather(attempts: Sequence[Attempt], site: Site) -> list[Rollout]:
    """Make all `attempts`, bounded by number and memory. In the order of `attempts`, whatever order they end in."""
    if site.expect is not None:
        await site.expect([attempt.task for attempt in attempts])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_with_retries(attempt, site)) for attempt in attempts]
    rollouts = [task.result() for task in tasks]
    _refuse_unreliable(rollouts, site)
    return rollouts


def _refuse_unreliable(rollouts: Sequence[Rollout], site: Site) -> None:
    faults = [r for r in rollouts if r.outcome is Outcome.CAPTURE_FAULT]
    if len(faults) > site.options.max_capture_faults * len(rollouts):
        share = f"{len(faults)} of {len(rollouts)} rollouts"
        raise CaptureError(f"{share} could not be captured exactly; the first, {faults[0].id}: {faults[0].reason}")
    for rollout in rollouts:
        if site.credit[rollout.outcome] is Credit.ABORT:
            raise ClawexpError(f"rollout {rollout.id} ended with {rollout.outcome}, which aborts: {rollout.reason}")


async def _with_retries(attempt: Attempt, site: Site) -> Rollout:
    failed: list[Outcome] = []
    while True:
        async with site.gate.enter(attempt.harness.needs().memory_mb):
            rollout = await _attempt(attempt, site)
        if site.credit[rollout.outcome] is not Credit.RETRY or attempt.retry >= site.options.retries:
            return replace(rollout, retried=tuple(failed))
        log.warning("rollout %s: %s, made again: %s", rollout.id, rollout.outcome, rollout.reason)
        failed.append(rollout.outcome)
        attempt = replace(attempt, retry=attempt.retry + 1)


@dataclass(kw_only=True)
class _Progress:
    """What is known so far of a rollout that may fail at any moment."""

    times: dict[str, float] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None
    outcome: Outcome = Outcome.COMPLETED
    reason: str = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.times[name] = round(time.monotonic() - begin, 4)


async def _attempt(attempt: Attempt, site: Site) -> Rollout:
    progress = _Progress()
    try:
        await _live(attempt, site, progress)
    except* (ClawexpError, OSError) as group:
        error = first_of(group)
        progress.outcome = next((o for kind, o in FAULTS.items() if isinstance(error, kind)), Outcome.RUNTIME_FAULT)
        progress.reason = f"{type(error).__name__}: {error}"
    graded = progress.verdict if progress.outcome in GRADED else None
    return Rollout(
        id=attempt.rollout_id,
        task_id=attempt.task.id,
        harness=attempt.harness_name,
        step=attempt.step,
        number=attempt.number,
        seed=attempt.seed,
        outcome=progress.outcome,
        reward=_reward(progress.outcome, graded, site.credit),
        calls=progress.calls,
        verdict=graded,
        reason=progress.reason,
        times=progress.times,
        facts=progress.facts,
    )


def _reward(outcome: Outcome, verdict: Verdict | None, credit: Mapping[Outcome, Credit]) -> float | None:
    if credit[outcome] is Credit.ZERO:
        return 0.0
    return verdict.score if verdict is not None else None


async def _live(attempt: Attempt, site: Site, progress: _Progress) -> None:
    door = site.boundary.door(attempt.rollout_id)
    owner = Owner(
        run_id=site.run_id,
        rollout_id=attempt.rollout_id,
        root=site.root,
        proxy_socket=door.socket,
        proxy_port=door.port,
    )
    limit = site.options.sandbox_s
    async with AsyncExitStack() as stack:
        with progress.stage("sandbox"):
            async with _within(limit, RuntimeFault(f"no sandbox within {limit:g} s (rollout.sandbox_s)")):
                place = site.runtime.sandbox(attempt.task, attempt.harness.needs(), owner)
                sandbox = await stack.enter_async_context(place)
        progress.facts.update(sandbox.facts)
        finished = await _act(attempt, site, sandbox, progress)
        await sandbox.stop()  # what looks at the files is not to be reached by what the harness left
        progress.outcome, progress.reason = _judge(finished, progress, attempt)
        if progress.outcome in GRADED:
            with progress.stage("grade"):
                progress.verdict = await _grade(attempt, site, sandbox)
        begin = time.monotonic()
    progress.times["remove"] = round(time.monotonic() - begin, 4)


@asynccontextmanager
async def _within(seconds: float, fault: ClawexpError) -> AsyncIterator[None]:
    """Raise `fault` when the block takes longer; a time-out of the block's own stays what it is."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise fault from error
        raise


async def _act(attempt: Attempt, site: Site, sandbox: Sandbox, progress: _Progress) -> Finished:
    """Run the harness to its end, then settle."""
    key = await site.boundary.open(attempt.rollout_id, attempt.seed, attempt.temperature)
    try:
        with progress.stage("harness"):
            launch = attempt.harness.launch(attempt.task, link_to(site.model, attempt.harness, key, sandbox), sandbox)
            if site.boundary.certificate is not None:
                launch = through_proxy(launch, key, site.boundary.certificate, sandbox)
            await sandbox.put(launch.files)
            finished = await sandbox.run(launch.command)
    except (ClawexpError, OSError):
        # Not when cancelled: the boundary may be gone by then, and its error would take the cancellation's place.
        await _settle(attempt, site, progress)
        raise
    await _settle(attempt, site, progress)
    progress.facts["harness"] = attempt.harness.counts(finished)
    return finished


async def _settle(attempt: Attempt, site: Site, progress: _Progress) -> None:
    """End the rollout at the boundary and read its calls back from the journal."""
    limit = site.options.settle_s
    fault = CaptureError(f"its last call was not in the journal within {limit:g} s (rollout.settle_s)")
    with progress.stage("settle"):
        async with _within(limit, fault):
            closed = await site.boundary.close(attempt.rollout_id)
    progress.calls = closed.calls
    progress.facts["capture"] = dict(closed.counts)


def _judge(finished: Finished, progress: _Progress, attempt: Attempt) -> tuple[Outcome, str]:
    """How it ended, and why. The order is that of blame: capture, engine, harness, policy."""
    counts = progress.facts["capture"]
    tail = (finished.stderr or finished.stdout).decode(errors="replace").strip()[-600:]
    named = attempt.harness.outcome(finished)
    if counts.get("capture_faults"):
        return Outcome.CAPTURE_FAULT, f"{counts['capture_faults']} model calls could not be captured; see capture.log"
    if counts.get("engine_faults"):
        return Outcome.ENGINE_FAULT, f"the engine failed {counts['engine_faults']} model calls; see capture.log"
    if not progress.calls and finished.timed_out and counts.get("left"):
        return Outcome.ENGINE_FAULT, f"its first model call had no answer when its {finished.wall_s:.0f} s were over"
    if not progress.calls:
        return Outcome.HARNESS_FAULT, f"it made no model call and ended with {finished.code}: {tail}"
    if finished.timed_out:
        return Outcome.TRUNCATED, f"its {finished.wall_s:.0f} s were over"
    if counts.get("final_answers"):
        return Outcome.TRUNCATED, "its calls were used up"
    if named is not None:
        return named, f"exit status {finished.code}"
    last = progress.calls[-1].verdict
    if last == "malformed":
        return Outcome.PARSE_FAULT, "the model's last word was a malformed tool call"
    if last == "cut":
        return Outcome.TRUNCATED, "the model's last word was cut at its token limit"
    if finished.code != 0:
        return Outcome.HARNESS_FAULT, f"exit status {finished.code}: {tail}"
    return Outcome.COMPLETED, ""


async def _grade(attempt: Attempt, site: Site, sandbox: Sandbox) -> Verdict:
    about = f"the grader of task {attempt.task.id} gave no verdict"
    limit = site.options.grade_s
    async with _within(limit, TasksetError(f"{about} within {limit:g} s (rollout.grade_s)")):
        try:
            verdict = await attempt.task.grader.grade(sandbox)
        except Exception as error:  # whatever a taskset's own code raises, it is no verdict
            raise TasksetError(f"{about}: {error!r}") from error
    if not 0.0 <= verdict.score <= 1.0:
        raise TasksetError(f"{about}: its score is {verdict.score}, not in [0, 1]")
    return verdict
