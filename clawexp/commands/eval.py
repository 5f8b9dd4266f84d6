"""Score a model, or a run's newest checkpoint, on held-out tasks: mean score and Pass@1, with their intervals.

A run is scored as it was trained, with the values that are given instead of its own. Where a group's option is given,
such as another harness, all of the experiment is what the command line says, and only the weights are the run's.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from clawexp.attempt import evaluation_attempts
from clawexp.cache import say
from clawexp.commands.arguments import conf_folder, groups, sort_arguments
from clawexp.commands.compose import build, check, composed, rebuilt
from clawexp.commands.overrides import parse
from clawexp.commands.problem import Problem, nearest_key, refuse
from clawexp.commands.walk import key_paths
from clawexp.errors import ConfigError
from clawexp.logger.jsonl import finite
from clawexp.run_folder import RunFolder
from clawexp.spec import Experiment

IDLE = ("logger", "launcher")
"""Groups that an evaluation does not use."""


def run(argv: Sequence[str]) -> int:
    """`eval [resume=RUN] [overrides]`. One JSON line on stdout, a sentence on stderr."""
    arguments = sort_arguments(list(argv))
    if arguments.flags:
        raise ConfigError(f"eval takes overrides only, not {' '.join(arguments.flags)}")
    experiment = experiment_of(arguments.overrides)
    if not evaluation_attempts(experiment, step=0):
        raise ConfigError("eval.num_tasks=0 leaves nothing to evaluate; give a number of held-out tasks")
    weights = _weights(experiment.resume)
    scored = f"the weights of {weights}" if weights else experiment.model.path
    say(f"scoring {scored}, {' and '.join(experiment.harness)} with {experiment.model.name}")
    # torch is imported only now, when the evaluation is known to be possible.
    from clawexp.evaluation import evaluate_until_done

    values = evaluate_until_done(experiment, weights)
    print(json.dumps(finite(values)))
    score, pass_at_1 = (_interval(values, name) for name in ("eval/score", "eval/pass_at_1"))
    print(f"mean score {score}, Pass@1 {pass_at_1}, {int(values['eval/rollouts'])} rollouts", file=sys.stderr)
    return 0


def experiment_of(overrides: Sequence[str]) -> Experiment:
    """What an evaluation of this command line scores. Raises ConfigError."""
    parsed, problems = parse(overrides)
    refuse(problems)
    given = {o.key_or_group: o for o in parsed if o.key_or_group.split(".")[0] not in IDLE}
    resume = given["resume"].value() if "resume" in given else None
    if resume is None or any(group in given for group in groups(conf_folder())):
        check(overrides)
        return build(composed(overrides))
    folder = RunFolder(path=Path(str(resume)))
    if not (folder.path / "config.json").is_file():
        raise ConfigError(f"resume={resume}: no run there (no config.json)")
    config = OmegaConf.create(folder.config)
    known = list(key_paths(folder.config))
    refuse(
        [
            Problem(where=str(o.input_line), what=f"no such key; {nearest_key(key, known)}")
            for key, o in given.items()
            if key not in known
        ]
    )
    for key, override in given.items():
        OmegaConf.update(config, key, override.value())
    return rebuilt(folder, config)


def _weights(resume: str | None) -> Path | None:
    if resume is None:
        return None
    folder = RunFolder(path=Path(resume))
    steps = folder.checkpoint_steps()
    if not steps:
        raise ConfigError(f"resume={resume}: no checkpoint there; name the folder of a run")
    return folder.checkpoint(steps[-1])


def _interval(values: dict[str, float], name: str) -> str:
    return f"{values.get(name, float('nan')):.3f} +- {values.get(f'{name}_ci95', float('nan')):.3f}"
