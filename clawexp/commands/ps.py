"""The live sandboxes of this user's runs: run, rollout, runtime, age, whether the driver lives."""

import time
from collections.abc import Sequence

from clawexp.errors import ConfigError
from clawexp.runtime.label import Label, labelled
from clawexp.scratch import scratch_root

HEAD = ("run", "rollout", "runtime", "age", "driver")


def run(argv: Sequence[str]) -> int:
    """Print a line for every sandbox."""
    if argv:
        raise ConfigError(f"ps takes no arguments (it was given {' '.join(argv)})")
    rows = [_row(label) for _, label in labelled(scratch_root())]
    if not rows:
        print(f"no sandboxes under {scratch_root()}")
        return 0
    widths = [max(len(row[column]) for row in (HEAD, *rows)) for column in range(len(HEAD))]
    for row in (HEAD, *rows):
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(label: Label) -> tuple[str, ...]:
    pid = label.owner.partition(":")[0]
    driver = pid if label.owned else f"{pid} is dead: python -m clawexp reap"
    return label.run, label.rollout, label.runtime, _age(time.time() - label.made), driver


def _age(seconds: float) -> str:
    """`42 s`, `7 min`, `3.5 h`"""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
