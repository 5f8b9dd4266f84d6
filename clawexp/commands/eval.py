"""Score a model, or a run's newest checkpoint, on held-out tasks: mean score and Pass@1, with their intervals."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from clawexp.attempt import evaluation_attempts
from clawexp.commands.arguments import sort_arguments
from clawexp.commands.compose import build, check, composed
from clawexp.errors import ConfigError
from clawexp.logger.jsonl import finite
from clawexp.run_folder import RunFolder


def run(argv: Sequence[str]) -> int:
    """`eval [resume=RUN] [overrides]`. One JSON line on stdout, a sentence on stderr."""
    arguments = sort_arguments(list(argv))
    if arguments.flags:
        raise ConfigError(f"eval takes overrides only, not {' '.join(arguments.flags)}")
    check(arguments.overrides)
    experiment = build(composed(arguments.overrides))
    if not evaluation_attempts(experiment, step=0):
        raise ConfigError("eval.num_tasks=0 leaves nothing to evaluate; give a number of held-out tasks")
    weights = _weights(experiment.resume)
    # torch is imported only now, when the evaluation is known to be possible.
    from clawexp.evaluation import evaluate_until_done

    values = evaluate_until_done(experiment, weights)
    print(json.dumps(finite(values)))
    score, pass_at_1 = (_interval(values, name) for name in ("eval/score", "eval/pass_at_1"))
    print(f"mean score {score}, Pass@1 {pass_at_1}, {int(values['eval/rollouts'])} rollouts", file=sys.stderr)
    return 0


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
