"""Run the experiment that the command line describes, here or through a launcher."""

import logging
import os
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from clawexp.attempt import training_attempts
from clawexp.commands.arguments import Arguments, conf_folder, sort_arguments
from clawexp.commands.compose import build, check, composed, resolved, with_sweep
from clawexp.commands.overrides import assigned, parse, sweep_points
from clawexp.commands.plan import print_plan
from clawexp.errors import ClawexpError, ConfigError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.protocols import Imitating
from clawexp.redact import redact
from clawexp.run_folder import RunFolder, find_run
from clawexp.spec import Experiment

log = logging.getLogger(__name__)


def run(argv: Sequence[str]) -> int:
    """Check everything, then hand over to Hydra, which runs the task here or ships it through a launcher."""
    arguments = sort_arguments(list(argv))
    config_dir = arguments.flag("--config-dir", "-cd")
    config_name = arguments.flag("--config-name", "-cn")
    overrides, sweeps = with_sweep(arguments.overrides, config_dir, config_name)
    if not arguments.shows:
        check(overrides, config_dir, config_name, multirun=arguments.multirun or sweeps)
    if arguments.dry_run:
        points = sweep_points(overrides)
        if len(points) > 1:
            print(f"# a sweep of {len(points)} points; the first:")
        print_plan(composed(points[0], config_dir, config_name), len(points))
        return 0
    if not arguments.shows and not arguments.multirun and config_name is None:
        checkpoint_folder(build(composed(arguments.overrides)).model.path)
    words = [*arguments.overrides, *_run_folder(arguments)]
    if not arguments.shows:
        _refuse_unwritable(words)
    sys.argv = ["clawexp", *arguments.flags, *words]
    hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name="config")(task)()
    return 0


def _refuse_unwritable(words: Sequence[str]) -> None:
    """Hydra's own words for a folder that cannot be made are a traceback. Raises ConfigError."""
    for override in parse([word for word in words if word.startswith(("hydra.run.dir=", "hydra.sweep.dir="))])[0]:
        folder = str(override.value() or "")
        if not folder:
            raise ConfigError(f"{override.input_line}: no folder is named; leave it out, or name one")
        if "${" in folder:
            continue
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{override.input_line}: the run's folder cannot be made: {error}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"{override.input_line}: nothing can be written there; name another folder")


def _run_folder(arguments: Arguments) -> list[str]:
    """Where Hydra shall put the run: the run that is resumed, or a fresh folder whose name says when."""
    placed = any(o.startswith("hydra.") and ".dir=" in o for o in arguments.overrides)
    many = arguments.multirun or arguments.flag("--config-name", "-cn") is not None
    if (placed or many) and any(o.startswith("resume=") and o != "resume=null" for o in arguments.overrides):
        raise ConfigError("resume goes on with one run where it is; leave out -m, --config-name and hydra.run.dir")
    if arguments.shows or placed:
        return []
    fresh = f"runs/{time.strftime('%Y-%m-%d')}/{time.strftime('%H%M%S')}-{secrets.token_hex(2)}"
    if many:
        return [f"hydra.run.dir={fresh}", f"hydra.sweep.dir={fresh}"]
    config = composed(arguments.overrides)
    folder = fresh if config.resume is None else find_run(config.resume, redact(resolved(config))).path
    if config.launcher is not None:  # to Hydra it is a sweep of one
        return [assigned("hydra.sweep.dir", str(folder)), "hydra.sweep.subdir=."]
    return [assigned("hydra.run.dir", str(folder))]


def task(config: DictConfig) -> dict[str, float]:
    """Run one experiment in the folder that Hydra made for it; its last metrics."""
    folder = RunFolder(path=Path(HydraConfig.get().runtime.output_dir))
    try:
        return _train(config, folder)
    except KeyboardInterrupt:
        print(f"\nclawexp: stopped {_where(folder, config.steps)}", file=sys.stderr)
        raise
    except ClawexpError as error:
        log.info("the run ended with an error", exc_info=True)  # for the log file; the console gets its message
        print(f"clawexp: {error}", file=sys.stderr)
        if folder.checkpoint_steps():
            print(f"clawexp: go on with: python -m clawexp {_again(folder)}", file=sys.stderr)
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            # The other points are still run; Hydra reports errors of this class without a traceback.
            raise CompactHydraException(str(error)) from error
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _where(folder: RunFolder, num_steps: int) -> str:
    """How far a run came that was stopped, and how to go on with it."""
    steps = folder.checkpoint_steps()
    if not steps:
        return "at once"
    if folder.finished:
        return f"when all was done; what the run left is in {folder.path}"
    stage = f"before step {steps[-1] + 1}" if steps[-1] < num_steps else "in the evaluation after its last step"
    return f"{stage}. Go on with: python -m clawexp {_again(folder)}"


def _train(config: DictConfig, folder: RunFolder) -> dict[str, float]:
    experiment = build(config)
    if folder.finished and folder.checkpoint_steps()[-1] >= experiment.steps:
        print(f"run {folder.path} is finished; ask for more than its {experiment.steps} steps", file=sys.stderr)
        return folder.last_metrics()
    if folder.finished:
        reached = folder.checkpoint_steps()[-1]
        print(
            f"run {folder.path} was finished after {reached} steps; it goes on to {experiment.steps}", file=sys.stderr
        )
    if folder.checkpoint_steps() and experiment.resume is None:
        raise ConfigError(f"{folder.path} already holds a run; go on with it by resume={folder.path}")
    checkpoint_folder(experiment.model.path)
    if isinstance(experiment.algo, Imitating):
        return _imitate(experiment, folder, config)
    experiment.prepare()
    # torch is imported only now, when the experiment is known to be possible.
    from clawexp.experiment import train_until_done

    print(f"run {folder.path}: {_summary(experiment)}; starting", file=sys.stderr)
    last = train_until_done(experiment, folder, redact(resolved(config)))
    print(f"done; what the run left is in {folder.path}", file=sys.stderr)
    return last


def _imitate(experiment: Experiment, folder: RunFolder, config: DictConfig) -> dict[str, float]:
    assert isinstance(experiment.algo, Imitating)
    # As above.
    from clawexp.imitation import imitate_until_done
    from clawexp.training import WEIGHTS

    said = f"{experiment.model.name} learns from {', '.join(experiment.algo.runs)}, {experiment.steps} steps"
    print(f"run {folder.path}: {said}; starting", file=sys.stderr)
    last = imitate_until_done(experiment, folder, redact(resolved(config)))
    weights = assigned("model.path", str((folder.path / WEIGHTS).absolute()))
    print(f"done; a run that starts from it: python -m clawexp {shlex.quote(weights)}", file=sys.stderr)
    return last


def _summary(experiment: Experiment) -> str:
    """`64 rollouts a step for 36 steps, builtin with tiny`"""
    rollouts = len(training_attempts(experiment, 0))
    harnesses = " and ".join(experiment.harness)
    return f"{rollouts} rollouts a step for {experiment.steps} steps, {harnesses} with {experiment.model.name}"


def _again(folder: RunFolder) -> str:
    overrides = [o for o in HydraConfig.get().overrides.task if not o.startswith("resume=")]
    return shlex.join([*overrides, assigned("resume", str(folder.path))])
