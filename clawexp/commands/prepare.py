"""Fetch or build what a harness, a runtime, an engine or a model needs: `prepare harness=openclaw`."""

import sys
from collections.abc import Sequence

from clawexp.commands.arguments import sort_arguments
from clawexp.commands.compose import build, check, composed
from clawexp.errors import ConfigError


def run(argv: Sequence[str]) -> int:
    """Prepare every part that the overrides choose; what is ready stays as it is."""
    arguments = sort_arguments(list(argv))
    if arguments.flags or not arguments.overrides:
        raise ConfigError("prepare takes overrides: python -m clawexp prepare harness=openclaw")
    check(arguments.overrides)
    experiment = build(composed(arguments.overrides))
    for name, part in experiment.preparable().items():
        if part.prepared() is not None:
            print(f"{name}: preparing", file=sys.stderr)
        part.prepare()
        print(f"{name}: ready")
    if experiment.model.source is not None:
        # Converting a released checkpoint needs torch and transformers; running one does not.
        from clawexp.model.convert import convert

        convert(experiment.model)
    print(f"model {experiment.model.name}: ready")
    return 0
