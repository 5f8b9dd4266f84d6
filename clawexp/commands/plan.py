"""What a run would start: the page that `--dry-run` prints."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from clawexp.attempt import harness_weights, tasks_per_step
from clawexp.commands.compose import build
from clawexp.protocols import Imitating
from clawexp.records import Command, Finished, Heard, Link
from clawexp.spec import Experiment


@dataclass
class _NoSandbox:
    """Stands where a sandbox would, for commands that are printed and not run."""

    id: str = "dry-run"
    workspace: str = "/work"
    home: str = "/home/agent"
    python: str = "/usr/bin/python3"
    facts: Mapping[str, Any] = field(default_factory=dict)

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        raise AssertionError("a dry run runs nothing")

    async def stop(self) -> None:
        await self.run(Command(argv=()))

    async def snapshot(self) -> str:
        raise AssertionError("a dry run has no files")

    async def reset(self, to: str | None = None) -> None:
        await self.snapshot()

    async def put(self, files: Mapping[str, bytes]) -> None:
        await self.run(Command(argv=()))

    async def get(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def files(self) -> dict[str, int]:
        return {}


def print_plan(config: DictConfig, num_points: int = 1) -> None:
    """Print the resolved experiment, the first of `num_points`, and every command that it would start."""
    experiment = build(config)
    print(OmegaConf.to_yaml(config, resolve=True))
    for line in planned(experiment, num_points):
        print(f"# {line}")


def planned(experiment: Experiment, num_points: int = 1) -> Iterator[str]:
    """What would be started, line by line."""
    if isinstance(algo := experiment.algo, Imitating):
        rate = f"{algo.batch_rollouts} rollouts a step for {experiment.steps} steps"
        yield f"would learn from {', '.join(algo.runs)}, {rate}"
    else:
        yield from _gathering(experiment)
    if experiment.launcher is not None:
        yield "would be launched as"
        yield from (
            f"  {line}" for line in experiment.launcher.plan(num_points, Path("runs/NEW").absolute()).splitlines()
        )


def _gathering(experiment: Experiment) -> Iterator[str]:
    yield f"would start, once: {experiment.model.engine}"
    total, weights = tasks_per_step(experiment), harness_weights(experiment.harness)
    for name, harness in experiment.harness.items():
        tasks = f"{total * weights[name] / sum(weights.values()):g}"
        group = experiment.group_size or harness.group_size
        yield f"would start, {tasks} tasks x {group} rollouts a step for {experiment.steps} steps: harness {name}"
        yield f"  {_command(experiment, name)}"
    for name, part in experiment.preparable().items():
        if (line := part.prepared()) is not None:
            yield f"would first prepare {name}: {line}"


def _command(experiment: Experiment, name: str) -> str:
    link = Link(
        url="http://127.0.0.1:PORT",
        socket="PROXY_SOCKET",
        key="KEY",
        model=experiment.model.name,
        context=experiment.model.context,
        max_tokens=experiment.model.max_tokens,
    )
    task = experiment.taskset.train(0, 1, experiment.seed)[0]
    launch = experiment.harness[name].launch(task, link, _NoSandbox())
    return shlex.join(launch.command.argv)
