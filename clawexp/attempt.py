"""What a step or an evaluation will try: tasks x harnesses x rollouts -> attempts, the same ones on every resume."""

import hashlib
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from clawexp.protocols import Harness
from clawexp.records import Task
from clawexp.spec import Experiment

ROUND_SEED = 1_000_003
"""What further rounds of a step add to the seed of its tasks."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One rollout to be made."""

    task: Task
    harness_name: str
    harness: Harness
    step: int
    number: int
    seed: int
    temperature: float | None = None
    """None: the temperature of training."""
    evaluation: bool = False
    retry: int = 0

    @property
    def rollout_id(self) -> str:
        """`00003-lookup-train-0-3-1-builtin-5`; evaluations begin with `eval-`, what is made again ends with `-r1`."""
        head = "eval-" if self.evaluation else ""
        tail = f"-r{self.retry}" if self.retry else ""
        return f"{head}{self.step:05d}-{self.task.id}-{self.harness_name}-{self.number}{tail}"


def training_attempts(experiment: Experiment, step: int) -> list[Attempt]:
    """The tasks of a step, each under one harness, `group_size` times."""
    total = tasks_per_step(experiment)
    names = shared_out(harness_weights(experiment.harness), step * total, total)
    tasks = experiment.taskset.train(step, total, experiment.seed)
    return [
        _attempt(experiment, task, name, step, number)
        for name, task in zip(names, tasks, strict=True)
        for number in range(_group_size(experiment, name))
    ]


def further_attempts(
    experiment: Experiment, step: int, extra_round: int, num_tasks: int, tried: Collection[str]
) -> list[Attempt]:
    """The same for `num_tasks` tasks beside those of a step, at most as many as it has; rounds are counted from 1.

    Which ones depends on the round alone. One whose id has been `tried` in this step gets another id.
    """
    total = tasks_per_step(experiment)
    names = shared_out(harness_weights(experiment.harness), step * total, total)[:num_tasks]
    tasks = experiment.taskset.train(step, total, experiment.seed + ROUND_SEED * extra_round)[:num_tasks]
    taken = set(tried)
    attempts: list[Attempt] = []
    for name, task in zip(names, tasks, strict=True):
        again = (replace(task, id=f"{task.id}-x{times}") for times in itertools.count(2))
        task = next(each for each in itertools.chain([task], again) if each.id not in taken)
        taken.add(task.id)
        attempts += [_attempt(experiment, task, name, step, number) for number in range(_group_size(experiment, name))]
    return attempts


def evaluation_attempts(experiment: Experiment, step: int) -> list[Attempt]:
    """`eval.rollouts` attempts at each held-out task, under each harness; empty when evaluation is off."""
    return [
        _attempt(experiment, task, name, step, number, evaluation=True)
        for name, harness in experiment.harness.items()
        for task in experiment.taskset.evaluation(evaluation_tasks(experiment, harness))
        for number in range(experiment.eval.rollouts)
    ]


def tasks_per_step(experiment: Experiment) -> int:
    """Over all harnesses."""
    return experiment.num_tasks or sum(harness.num_tasks for harness in experiment.harness.values())


def _group_size(experiment: Experiment, harness_name: str) -> int:
    return experiment.group_size or experiment.harness[harness_name].group_size


def evaluation_tasks(experiment: Experiment, harness: Harness) -> int:
    """Held-out tasks that the harness is scored on."""
    given = experiment.eval.num_tasks
    return harness.eval_tasks if given is None else given


def harness_weights(harnesses: Mapping[str, Harness]) -> dict[str, float]:
    """What tasks are shared out by: a harness without a weight weighs as many tasks as it would take alone."""
    return {name: harness.weight or harness.num_tasks for name, harness in harnesses.items()}


def shared_out(weights: Mapping[str, float], first: int, number: int) -> list[str]:
    """Whose are the tasks `first .. first + number - 1`, counted over all steps.

    Each goes to the harness that is furthest behind its share: steps differ by a task where shares are no whole
    numbers, and a harness with a small weight still gets its tasks.
    """
    whole = sum(weights.values())
    given = dict.fromkeys(weights, 0)
    order: list[str] = []
    for index in range(first + number):
        behind = max(weights, key=lambda name: weights[name] / whole * (index + 1) - given[name])
        given[behind] += 1
        order.append(behind)
    return order[first:]


def _attempt(
    experiment: Experiment, task: Task, name: str, step: int, number: int, evaluation: bool = False
) -> Attempt:
    return Attempt(
        task=task,
        harness_name=name,
        harness=experiment.harness[name],
        step=step,
        number=number,
        seed=seed_of(experiment.seed, step, task.id, name, number),
        temperature=experiment.eval.temperature if evaluation else None,
        evaluation=evaluation,
    )


def seed_of(*parts: object) -> int:
    """A 63-bit seed from anything that names a draw."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
