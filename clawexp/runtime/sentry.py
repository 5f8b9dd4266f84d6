"""The processes of a gVisor sandbox on the host: a kernel in user space, what opens files for it, what programs run in.

conmon -> runsc-sandbox -> processes in whose memory programs run
       -> runsc-gofer

The first and what hangs from it have a user namespace to themselves, by which they are known when that has ended.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clawexp.errors import RuntimeFault
from clawexp.runtime.process import DEATH_S, LOOK_S


@dataclass(frozen=True, kw_only=True)
class Sentry:
    """Of one sandbox."""

    kernel: int
    """It traces what programs run in, and with the tracer the host ends the traced, if not at once."""
    gofer: int
    users: str
    """The user namespace, as the kernel names it."""

    def processes(self) -> list[int]:
        """All that there are while it runs."""
        found = [self.gofer, self.kernel]
        for pid in found:
            found += children(pid)
        return found

    def bind(self, admit: Callable[[int], object]) -> None:
        """Admit all of them: those that came before the kernel was admitted are in no group by descent."""
        done: set[int] = set()
        while new := set(self.processes()) - done:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    admit(pid)
            done |= new

    def gone(self) -> None:
        """Return when none runs any more. Raises RuntimeFault."""
        deadline = time.monotonic() + DEATH_S
        while left := self.left():
            if time.monotonic() > deadline:
                raise RuntimeFault(f"processes {left} of a gVisor sandbox run {DEATH_S:.0f} s after SIGKILL")
            time.sleep(LOOK_S)

    def left(self) -> list[int]:
        """Those that run, when its kernel has ended too."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if users(pid) == self.users and not is_dead(pid)]


@contextlib.contextmanager
def sentry(caller: int) -> Iterator[Sentry]:
    """Of the sandbox whose process 1 has called the driver: that call comes from the gofer.

    Raises RuntimeFault where it is gone.
    """
    others = [pid for pid in children(parent(caller)) if pid != caller]
    if len(others) != 1:
        raise RuntimeFault(f"beside the gofer of a gVisor sandbox there is its kernel; found were {others}")
    try:
        held = os.open(f"/proc/{others[0]}/ns/user", os.O_RDONLY)  # or the next sandbox's would be called the same
    except OSError as error:
        raise RuntimeFault("the kernel of a gVisor sandbox ended before it took a command") from error
    try:
        found = users(others[0])
        if found is None or found == users(parent(caller)):
            raise RuntimeFault("the kernel of a gVisor sandbox has no user namespace to itself, or has ended")
        yield Sentry(kernel=others[0], gofer=caller, users=found)
    finally:
        os.close(held)


def users(pid: int) -> str | None:
    """The user namespace of a process; None of one that is gone, or is nobody's business here."""
    try:
        return str(Path(f"/proc/{pid}/ns/user").readlink())
    except OSError:
        return None


def is_dead(pid: int) -> bool:
    """Gone, or not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def parent(pid: int) -> int:
    """Raises RuntimeFault where the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError as error:
        raise RuntimeFault("a gVisor sandbox ended before it took a command") from error


def children(pid: int) -> list[int]:
    """None of a process that is gone."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(word) for each in lists for word in each.split()]
