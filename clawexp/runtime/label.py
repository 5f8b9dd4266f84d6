"""What stands in a sandbox's folder of whose it is: for `ps`, for the reaper, and as labels of a container."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from clawexp.scratch import entries, start_time

FILE = "label.json"
EXPIRES_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Label:
    """`Label(run="run-4711-x", rollout="00003-copy-pi-0", runtime="podman", owner="4711:88123", ...)`"""

    run: str
    rollout: str
    runtime: str
    owner: str
    """Process id of the driver and its start time."""
    made: int
    """Seconds since the epoch, as the next one."""
    expires: int | None
    """From then on it may be removed even though its driver lives; None: never, as while nobody uses it."""
    podman: str = ""
    """Path of the socket of the podman that has its container."""
    container: str = ""
    """That container's name there; empty where it is none."""

    def labels(self) -> dict[str, str]:
        """As a container carries them."""
        shown = ("run", "rollout", "owner", "expires")
        return {f"clawexp.{name}": str(getattr(self, name)) for name in shown}

    @property
    def expired(self) -> bool:
        return self.expires is not None and self.expires < time.time()

    @property
    def owned(self) -> bool:
        """Whether the driver lives."""
        pid, _, started = self.owner.partition(":")
        return pid.isdigit() and start_time(int(pid)) == started


def new_label(run_id: str, rollout_id: str, runtime: str) -> Label:
    """Of a sandbox that this process makes now."""
    pid, now = os.getpid(), int(time.time())
    owner = f"{pid}:{start_time(pid)}"
    return Label(run=run_id, rollout=rollout_id, runtime=runtime, owner=owner, made=now, expires=now + EXPIRES_S)


def write_label(folder: Path, label: Label) -> None:
    (folder / FILE).write_text(json.dumps(asdict(label)))


def labelled(root: Path) -> Iterator[tuple[Path, Label]]:
    """Sandboxes of all runs whose folders lie under `root`, in order of path."""
    for folder in sorted(sandbox for run in entries(root) for sandbox in entries(run)):
        try:
            label = Label(**json.loads((folder / FILE).read_text()))
        except (OSError, ValueError, TypeError):  # it is none, or being written, or removed
            continue
        yield folder, label
