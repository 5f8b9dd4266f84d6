"""`python -I -S reaper_program.py PID START`: outlives a driver, removes what it leaves, and ends.

While the driver lives it only looks after sandboxes whose time is over. It ends at once when all of the driver is gone,
or when that cannot be brought about: then the next run's sweep, or `python -m clawexp reap`, goes on with it.
"""

import os
import select
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from clawexp.runtime.reaper import sweep, sweep_expired
from clawexp.scratch import entries, scratch_root, start_time

LOOK_S = 30.0
"""How often expired sandboxes are looked for."""
AGAIN_S = 0.2
LAST_S = 120.0
"""How long what a dead driver left may resist."""


def await_end(pid: int, started: str) -> None:
    """Return when the driver has ended."""
    try:
        driver = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The number may be another's by now.
        while start_time(pid) == started and not select.select([driver], [], [], LOOK_S)[0]:
            sweep_expired(scratch_root())
    finally:
        os.close(driver)


def remove_left(pid: int) -> bool:
    """Whether nothing of the driver is left."""
    deadline = time.monotonic() + LAST_S
    while True:
        # Its programs die a moment after it.
        removed = sweep(scratch_root())
        left = [path for path in entries(scratch_root()) if f"-{pid}-" in path.name]
        if removed and not left:
            sys.stderr.write(f"reaper: removed {removed} folders that process {pid} had left\n")
        if not left:
            return True
        if time.monotonic() > deadline:
            sys.stderr.write(f"reaper: {len(left)} folders of process {pid} resist: python -m clawexp reap\n")
            return False
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    await_end(int(sys.argv[1]), sys.argv[2])
    sys.exit(0 if remove_left(int(sys.argv[1])) else 1)
