"""Where the milliseconds of a rollout go: sandbox, harness process, boundary, engine, grading, end to end.

    python benchmarks/rollout.py [--rollouts 64] [--concurrency 1 8] [overrides]

Runs the real parts of the default experiment without learning. Wall time is per rollout and stage; CPU time is that of
each process over the whole gathering, divided by the number of rollouts. The baseline beside them is the same harness
program started bare, without sandbox, boundary or model, on this machine in this run.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from clawexp.admission import MemoryGate
from clawexp.attempt import Attempt, training_attempts
from clawexp.commands.compose import build, check, composed
from clawexp.records import Rollout
from clawexp.rollout import Site, gather
from clawexp.run import open_site
from clawexp.spec import Experiment

TICKS_PER_S = 100


def attempts(experiment: Experiment, number: int, step: int) -> list[Attempt]:
    sized = replace(experiment, num_tasks=max(1, number // 8), group_size=min(8, number))
    return training_attempts(sized, step)


def cpu_s(pid: int) -> float:
    """User and system time of a process, without its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def children() -> dict[str, int]:
    """The live engine and capture processes of this one."""
    found = {}
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        pid, parent, args = line.split(None, 2)
        for name in ("engine.server", "capture.proxy"):
            if name in args and int(parent) == os.getpid():
                found[name] = int(pid)
    return found


async def measure(experiment: Experiment, site: Site, number: int, concurrency: int, step: int) -> None:
    gated = replace(site, gate=MemoryGate(concurrency, experiment.rollout.memory_share))
    processes = children()
    before = {name: cpu_s(pid) for name, pid in processes.items()}
    own, ended = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    rollouts = await gather(attempts(experiment, number, step), gated)
    wall = time.monotonic() - begin
    count = len(rollouts)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {name: 1000 * (cpu_s(pid) - before[name]) / count for name, pid in processes.items()}
    used["driver"] = 1000 * (time.process_time() - own) / count
    used["sandbox and harness"] = 1000 * (after.ru_utime + after.ru_stime - ended.ru_utime - ended.ru_stime) / count
    print(
        f"\n{count} rollouts, {concurrency} at once: {count / wall:.1f} rollouts/s, {1000 * wall / count:.0f} ms each"
    )
    print("  wall ms (median):  " + ", ".join(f"{name} {value:.0f}" for name, value in stages(rollouts).items()))
    print("  CPU ms a rollout:  " + ", ".join(f"{name} {value:.0f}" for name, value in used.items()))
    calls = [call for rollout in rollouts for call in rollout.calls]
    print(
        f"  {len(calls) / count:.1f} calls of {fmean(len(c.prompt_ids) for c in calls):.0f} prompt and "
        f"{fmean(len(c.sampled_ids) for c in calls):.0f} sampled tokens; "
        f"engine {1000 * fmean(c.engine_s for c in calls):.0f} ms a call"
    )


def stages(rollouts: list[Rollout]) -> dict[str, float]:
    names = ("sandbox", "harness", "settle", "grade", "remove")
    return {name: 1000 * median(r.times[name] for r in rollouts if name in r.times) for name in names}


def bare_start_ms() -> float:
    """The interpreter with the harness program's imports and nothing else."""
    command = [sys.executable, "-I", "-S", "-c", "import _socket, json, os, sys"]
    times = []
    for _ in range(20):
        begin = time.monotonic()
        subprocess.run(command, check=True)
        times.append(time.monotonic() - begin)
    return 1000 * median(times)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    given, overrides = parser.parse_known_args()
    check(overrides)
    experiment = build(composed(overrides))
    print(f"baseline: the harness's interpreter started bare takes {bare_start_ms():.0f} ms")
    with tempfile.TemporaryDirectory(prefix="clawexp-bench-") as name:
        folder = Path(name)
        async with (
            experiment.model.engine.serve(experiment.model, experiment.seed, folder) as engine,
            open_site(experiment, folder, engine) as site,
        ):
            await gather(attempts(experiment, 8, step=0), site)  # warm-up, not counted
            for place, concurrency in enumerate(given.concurrency, start=1):
                number = given.rollouts if concurrency > 1 else max(8, given.rollouts // 4)
                await measure(experiment, site, number, concurrency, step=place)


if __name__ == "__main__":
    asyncio.run(main())
