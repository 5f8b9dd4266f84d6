"""Rebuild the batch of a run's last replayable step from its journal, and compare the loss with the logged one; or
replay recorded requests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clawexp.cache import say
from clawexp.commands import recorded
from clawexp.commands.compose import rebuilt
from clawexp.errors import ConfigError, LearnerError
from clawexp.run_folder import RunFolder

TOLERANCE = 1e-6


def run(argv: Sequence[str]) -> int:
    """`replay RUN`, or `replay --requests FOLDER`.

    Raises LearnerError when the losses differ by more than TOLERANCE.
    """
    if argv[:1] == ["--requests"]:
        return recorded.run(argv[1:])
    if len(argv) != 1 or "=" in argv[0]:
        raise ConfigError(
            "replay takes the folder of one run, or --requests and a folder: python -m clawexp replay runs/..."
        )
    folder = RunFolder(path=Path(argv[0]))
    if not (folder.path / "config.json").is_file():
        raise ConfigError(f"{folder.path}: no run there (no config.json)")
    steps = folder.steps()
    replayable = [step for step in folder.checkpoint_steps() if _loss(steps, step) is not None]
    if not replayable:
        kept = ", ".join(map(str, folder.checkpoint_steps())) or "none"
        raise ConfigError(
            f"{folder.path}: no step with a loss follows a kept checkpoint (checkpoints: {kept}); replay a run that "
            "keeps more of them, with keep_checkpoints"
        )
    step = replayable[-1]
    experiment = rebuilt(folder)
    # torch is needed from here on, and not for any of the refusals above.
    from clawexp.replay import replayed_loss

    say(f"replaying step {step} of {folder.path}")
    found = replayed_loss(experiment, folder, step)
    logged = _loss(steps, step)
    assert logged is not None
    print(f"step {step}: loss {found:.9g} from the journal, {logged:.9g} logged, difference {abs(found - logged):.2g}")
    if abs(found - logged) > TOLERANCE:
        raise LearnerError(
            f"step {step} of {folder.path} does not replay: the losses differ by more than {TOLERANCE:g}"
        )
    return 0


def _loss(steps: Mapping[int, Mapping[str, Any]], step: int) -> float | None:
    """What was logged of a step; None where it had none."""
    return steps.get(step, {}).get("metrics", {}).get("learner/loss")
