"""Fetch or build what a harness, a runtime or a model needs: `prepare harness=openclaw`, `prepare runtime=podman`."""

import sys
from collections.abc import Sequence

from clawexp.commands.arguments import sort_arguments
from clawexp.commands.compose import build, check, composed
from clawexp.errors import ConfigError
from clawexp.spec import Preparable


def run(argv: Sequence[str]) -> int:
    """Prepare every harness, the runtime and the model that the overrides choose; what is ready stays as it is."""
    arguments = sort_arguments(list(argv))
    if arguments.flags or not arguments.overrides:
        raise ConfigError("prepare takes overrides: python -m clawexp prepare harness=openclaw")
    check(arguments.overrides)
    experiment = build(composed(arguments.overrides))
    for name, harness in experiment.harness.items():
        if harness.prepared() is not None:
            print(f"harness {name}: preparing", file=sys.stderr)
            harness.prepare()
        print(f"harness {name}: ready")
    if isinstance(experiment.runtime, Preparable):
        experiment.runtime.prepare()
        print("runtime: ready")
    if experiment.model.source is not None:
        # Converting a released checkpoint needs torch and transformers; running one does not.
        from clawexp.model.convert import convert

        convert(experiment.model)
    print(f"model {experiment.model.name}: ready")
    return 0
