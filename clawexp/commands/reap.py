"""Remove what killed runs left behind: sandboxes, sockets, folders. Nothing of a live run is touched."""

from collections.abc import Sequence

from clawexp.errors import ConfigError
from clawexp.runtime.image import workshops
from clawexp.runtime.reaper import sweep
from clawexp.scratch import scratch_root


def run(argv: Sequence[str]) -> int:
    """Sweep, and say how many runs' remains were removed."""
    if argv:
        raise ConfigError(f"reap takes no arguments (it was given {' '.join(argv)})")
    root = scratch_root()
    removed = sweep(root) + sweep(workshops())
    left = len(list(root.iterdir())) if root.exists() else 0
    print(f"removed {removed} folders that killed runs had left; live ones hold {left} under {root}")
    return 0
