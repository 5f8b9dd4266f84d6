"""Remove what killed runs left behind: sandboxes and what runs in them, control groups, sockets, folders.

Of a live run nothing is touched but sandboxes whose time is over.
"""

from collections.abc import Sequence

from clawexp.errors import ConfigError
from clawexp.runtime.image import workshops
from clawexp.runtime.reaper import sweep, sweep_expired
from clawexp.scratch import entries, scratch_root


def run(argv: Sequence[str]) -> int:
    """Sweep, and say how many runs' remains were removed."""
    if argv:
        raise ConfigError(f"reap takes no arguments (it was given {' '.join(argv)})")
    root = scratch_root()
    removed = sweep(root) + sweep(workshops())
    if expired := sweep_expired(root):
        print(f"removed {expired} sandboxes of live runs, whose time was over")
    left = len(entries(root))
    print(f"removed {removed} folders that killed runs had left; live ones hold {left} under {root}")
    return 0
