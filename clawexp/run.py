"""A run while it is alive: boundary, engine, learner and loggers, opened together and closed together."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from clawexp.admission import MemoryGate
from clawexp.attempt import evaluation_attempts, further_attempts, tasks_per_step, training_attempts
from clawexp.batch.step_batch import groups_with_spread, packed, worth_of
from clawexp.capture.boundary import boundary
from clawexp.capture.rendering import open_rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.environment import describe_environment
from clawexp.errors import ClawexpError, EngineError
from clawexp.learner.parity import agreement, require, require_rendering
from clawexp.metrics import blocked_hosts, measure, measure_evaluation
from clawexp.protocols import Distributed, EngineHandle, Openable, Runtime, TaskAware
from clawexp.records import Rollout
from clawexp.rollout import Site, gather
from clawexp.run_folder import RunFolder
from clawexp.runtime.reaper import sweep
from clawexp.runtime.reaping import reaping
from clawexp.scratch import scratch_folder, scratch_root
from clawexp.spec import Experiment
from clawexp.training import WEIGHTS, Training, open_training
from clawexp.tree.tree import Tree

log = logging.getLogger(__name__)

PROBE_TOLERANCE = 5e-3
"""Largest |delta logp| between engine and learner on the probe: float32 gives about 1e-5, bfloat16 about 1e-3."""
PROBE_IDS = 64


class Run:
    """The rooms of one experiment, alive. Made by `open_run` alone."""

    def __init__(self, training: Training, engine: EngineHandle, site: Site) -> None:
        self.experiment, self.folder, self.learner = training.experiment, training.folder, training.learner
        self.start = training.start
        self._training = training
        self._engine = engine
        self._site = site
        self._worth: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._last = training.folder.last_metrics()
        self._clock = time.monotonic()
        self._logged = training.start
        self._blocked: set[str] = set()
        self._checked = False

    async def gather(self, step: int) -> list[Rollout]:
        """The rollouts of one step; of further tasks, too, where its own teach too little and the algorithm says so."""
        self._clock = time.monotonic()
        rollouts = await gather(training_attempts(self.experiment, step), self._site)
        for extra_round in range(1, self.experiment.algo.extra_rounds + 1):
            lacking = tasks_per_step(self.experiment) - len(groups_with_spread(self.experiment, rollouts))
            if lacking <= 0:
                break
            tried = {rollout.task_id for rollout in rollouts}
            rollouts += await gather(further_attempts(self.experiment, step, extra_round, lacking, tried), self._site)
        self._times = {"time/gather_s": time.monotonic() - self._clock}
        self._report_blocked(rollouts)
        return rollouts

    def _report_blocked(self, rollouts: Sequence[Rollout]) -> None:
        """Say once of each host that a sandbox wanted it in vain: a tool may be broken by that."""
        for host in blocked_hosts(rollouts).keys() - self._blocked:
            self._blocked.add(host)
            log.warning("a sandbox may not reach %s; capture.allow_hosts lists the hosts that it may", host)

    def pack(self, trees: Sequence[Tree], rollouts: Sequence[Rollout]) -> TensorDict:
        """One batch: what each rollout is worth beside its group, one tree for each group."""
        self._worth = worth_of(self.experiment, rollouts)
        return packed(self.experiment, trees, rollouts, self._worth)

    def check_parity(self, step: int, batch: TensorDict, rollouts: Sequence[Rollout]) -> None:
        """Compare engine and learner on the trees of a step, when it is time: before the first update of this process
        that has any, and every `parity.every` steps. Raises EngineError where they do not agree.
        """
        options = self.experiment.parity
        if self._checked and not (options.every and step % options.every == 0):
            return
        weights = self.folder.path / WEIGHTS
        require_rendering(
            self._site.boundary.rendering, open_rendering(weights, self.experiment.model.rendering).digest
        )
        found = agreement(batch, self.learner.decision_logprobs(batch), version=step)
        if found is None:
            return
        self._times |= {"parity/mean_delta": found.mean_delta, "parity/max_delta": found.max_delta}
        require(found, options, rollouts, step, Tokenizer(weights).decode([found.path[-1]]))
        self._checked = True

    async def load(self, version: int) -> None:
        """Push the learner's weights, and make sure that the engine now speaks with them. Raises EngineError."""
        begin = time.monotonic()
        weights = self.folder.path / WEIGHTS
        self.learner.export(weights)
        await self._engine.load(weights, version)
        self._times["engine/probe_delta"] = await self._probe()
        self._times["time/load_s"] = time.monotonic() - begin

    async def _probe(self) -> float:
        ids = probe_ids(self.learner.vocab_size)
        theirs = await self._engine.score(ids)
        ours = self.learner.score(ids, theirs.experts)
        delta = float((torch.tensor(theirs.logprobs) - ours).abs().max())
        if not delta <= PROBE_TOLERANCE:
            raise EngineError(
                f"engine and learner disagree after a weight push: |delta logp| {delta:.2g} on the probe, at most "
                f"{PROBE_TOLERANCE:g} is allowed. The engine serves other weights than it was given."
            )
        return delta

    def log(self, step: int, rollouts: Sequence[Rollout], metrics: Mapping[str, float]) -> None:
        """Journal what the step consumed, tell the loggers, and only then checkpoint.

        A process killed between any two of these does the step again, and what it wrote of it is dropped.
        """
        values = {**measure(rollouts, self._worth), **metrics, **self._times}
        values["time/step_s"] = time.monotonic() - self._clock
        values["rollout/per_s"] = len(rollouts) / values["time/gather_s"]
        self.folder.record(step, rollouts, self._worth, values)
        for sink in self._training.sinks:
            sink.log(step, values)
            sink.rollouts(step, rollouts)
        self._last = values
        self._logged = step + 1
        self._training.checkpoint_if_due(self._logged)

    def checkpoint(self) -> None:
        """Keep the learner as it stands after the last logged step."""
        self._training.checkpoint(self._logged)

    async def evaluate(self, step: int) -> None:
        """Score held-out tasks, when it is time: before the first step, every `eval.every` steps, after the last."""
        options = self.experiment.eval
        last = step == self.experiment.steps
        if not (step == 0 or last or (options.every and step % options.every == 0)):
            return
        if not (attempts := evaluation_attempts(self.experiment, step)):
            return
        rollouts = await gather(attempts, self._site)
        self.folder.record_evaluation(step, rollouts)
        values = measure_evaluation(rollouts)
        for sink in self._training.sinks:
            sink.log(step if not last else step - 1, values)
        self._last = {**self._last, **values}

    def finish(self) -> dict[str, float]:
        self.folder.finish()
        for sink in self._training.sinks:
            sink.summary(self._last)
        return self._last


def probe_ids(vocab_size: int) -> list[int]:
    """A fixed prompt that touches the whole vocabulary's range."""
    return [(7 + 7919 * i) % vocab_size for i in range(PROBE_IDS)]


@asynccontextmanager
async def open_run(experiment: Experiment, folder: RunFolder, config: Mapping[str, Any]) -> AsyncIterator[Run]:
    """Start everything the experiment needs, from the newest checkpoint where there is one.

    Raises ConfigError where another process runs the experiment of this folder.
    """
    async with AsyncExitStack() as stack:
        training = await stack.enter_async_context(open_training(experiment, folder, config))
        swept = sweep(scratch_root())
        if swept:
            log.info("removed %d folders that killed runs had left", swept)
        engine = await stack.enter_async_context(
            experiment.model.engine.serve(experiment.model, experiment.seed, folder.path)
        )
        site = await stack.enter_async_context(open_site(experiment, folder.path, engine))
        folder.note_environment({**describe_environment(experiment), "rendering": site.boundary.rendering})
        run = Run(training, engine, site)
        await run.load(version=training.start)
        try:
            yield run
        except (asyncio.CancelledError, ClawexpError):  # perhaps many steps after the newest checkpoint
            run.checkpoint()
            raise


@asynccontextmanager
async def open_site(experiment: Experiment, folder: Path, engine: EngineHandle) -> AsyncIterator[Site]:
    """The place where rollouts are made: a folder of this process's own, and the model boundary."""
    intercepted = any(harness.way_in == "interception" for harness in experiment.harness.values())
    with scratch_folder("run-") as root:
        root.chmod(0o711)
        async with (
            reaping(),
            boundary(
                experiment.capture, experiment.model, engine.url, engine.key, folder, interception=intercepted
            ) as at,
            _opened(experiment, [root, at.sockets]) as runtime,
        ):
            yield Site(
                run_id=root.name,
                root=root,
                runtime=runtime,
                boundary=at,
                model=experiment.model,
                options=experiment.rollout,
                credit=experiment.outcome,
                gate=_gate(experiment),
                expect=engine.expect if isinstance(engine, TaskAware) else None,
            )


def _gate(experiment: Experiment) -> MemoryGate:
    options, runtime = experiment.rollout, experiment.runtime
    if isinstance(runtime, Distributed):
        return MemoryGate(min(options.max_concurrency, sum(runtime.sandboxes_by_host.values())), math.inf)
    return MemoryGate(options.max_concurrency, options.memory_share)


def _opened(experiment: Experiment, folders: Sequence[Path]) -> AbstractAsyncContextManager[Runtime]:
    runtime = experiment.runtime
    return runtime.open(folders, experiment.places()) if isinstance(runtime, Openable) else nullcontext(runtime)
