"""What the kernel knows of a process: CPU time, time in which it could not run, memory; and the core it keeps to."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PRODUCT_CORE, *_, LOAD_CORE = sorted(os.sched_getaffinity(0)) * 2
"""What is measured has a core of its own; the load and the stub share another."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Seconds since the process began."""

    cpu_s: float
    kept_waiting_s: float
    """In which its main thread was ready to run and something else had the core: other work on the machine shows
    here, beside the process's own threads."""

    @classmethod
    def of(cls, pid: int) -> Self:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        delay = Path(f"/proc/{pid}/schedstat").read_text().split()[1]
        return cls(
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
            kept_waiting_s=int(delay) / 1e9,
        )


def resident_kib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1024


def keep_to(core: int, pid: int) -> None:
    """From now on the process runs on this core alone, and so do the threads and children that it starts."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})
