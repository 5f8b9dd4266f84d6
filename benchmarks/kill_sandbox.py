"""SIGKILL of a driver, of its podman service and of its reaper at random moments: is anything left?

    python benchmarks/kill_sandbox.py --n 50

Each time a real driver makes sandboxes without a pause, half of the times with bubblewrap and half with podman, whose
commands start processes that detach themselves. One of its processes is killed, or two. Then the driver has to end,
`python -m clawexp reap` is run, and nothing may be left: processes, mounts, control groups, sockets, folders. The next
driver starts where the last one was killed, and has to work.

Ends at the first fault, with what it is.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from clawexp.protocols import Openable, Runtime
from clawexp.records import Command, Needs, Owner, Task, Verdict
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.runtime.cgroup import own_groups
from clawexp.runtime.podman import Podman
from clawexp.runtime.reaping import reaping
from clawexp.scratch import scratch_folder

LIMITS = {"file_bytes": 1000, "memory_mb": 200, "cpus": 1.0, "pids": 50, "disk_mb": 100, "require_limits": False}
RUNTIMES: dict[str, Runtime] = {
    "bubblewrap": Bubblewrap(**LIMITS),
    # With one warm sandbox for three workers: sandboxes are made, kept and made as new at any moment.
    "podman": Podman(
        **LIMITS,
        warm=1,
        creators=2,
        oci_runtime="crun",
        base="package:base",
        build_network="none",
        build_s=600,
        builds=1,
    ),
}
VICTIMS = ("driver", "driver and reaper", "reaper", "service")
"""Whose death is tried, in turn; bubblewrap has no service."""
AT_ONCE = 3
LONGEST_S = 1.0
"""The kill comes within it, uniformly drawn, after the first command has begun."""
END_S = 180.0
SEEN = ("cmdline", "environ", "mountinfo")


class Fault(Exception):
    """What must not be."""


class NoGrader:
    async def grade(self, sandbox: object) -> Verdict:
        raise NotImplementedError


async def drive(name: str) -> None:
    """Be a driver: make sandboxes until killed, or until something that it needs is."""
    task = Task(id="t", instruction="", files={"a": b"1"}, grader=NoGrader(), split="train")
    async with contextlib.AsyncExitStack() as stack:
        reaper = await stack.enter_async_context(reaping())
        root = stack.enter_context(scratch_folder("run-"))
        root.chmod(0o711)
        runtime = RUNTIMES[name]
        if isinstance(runtime, Openable):
            runtime = await stack.enter_async_context(runtime.open([root], []))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for number in range(AT_ONCE):
            group.create_task(_work(runtime, task, root, f"{number}", lambda: reaper.pid))


async def _work(runtime: Runtime, task: Task, root: Path, number: str, reaper: object) -> None:
    assert callable(reaper)
    owner = Owner(run_id=root.name, rollout_id=number, root=root, proxy_socket=None, proxy_port=1)
    command = Command(argv=("sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & sleep 0.2"), env={"PATH": "/usr/bin:/bin"})
    while True:
        async with runtime.sandbox(task, Needs(), owner) as sandbox:
            sys.stdout.write(f"{reaper()}\n")
            sys.stdout.flush()
            await sandbox.run(command)


@contextlib.asynccontextmanager
async def driver(name: str, tmp: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """One that has begun to work. Raises Fault."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--drive", name),
        env={**os.environ, "TMPDIR": str(tmp)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def kill_once(name: str, victim: str, tmp: Path, rng: random.Random) -> float:
    """Start, kill, look. Seconds until nothing was left without further help. Raises Fault."""
    async with driver(name, tmp) as process:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), END_S)
        if not line:
            assert process.stderr is not None
            raise Fault(f"a driver with {name} did not start: {(await process.stderr.read()).decode()[-2000:]}")
        await asyncio.sleep(rng.uniform(0, LONGEST_S))
        reaper = int(line)
        for pid in _doomed(victim, process.pid, reaper, rng):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victim == "reaper":
            await _replaced(process, reaper)
            process.kill()
        begin = time.monotonic()
        await _drained(process, victim)
    patience_s = 0 if victim == "driver and reaper" else 30
    while _left(tmp, process.pid) and time.monotonic() - begin < patience_s:  # noqa: ASYNC110 - it is of others
        await asyncio.sleep(0.1)
    alone_s = time.monotonic() - begin
    reap = [sys.executable, "-m", "clawexp", "reap"]
    await asyncio.to_thread(
        subprocess.run, reap, env={**os.environ, "TMPDIR": str(tmp)}, check=True, stdout=subprocess.DEVNULL
    )
    if left := _left(tmp, process.pid):
        raise Fault(f"{victim} of a driver with {name} was killed, and after reap there are: {', '.join(left)}")
    return alone_s


def _doomed(victim: str, pid: int, reaper: int, rng: random.Random) -> Sequence[int]:
    if victim == "service":
        # Any of the processes that it consists of, or that it has started.
        found = [each for each in _naming(f"/podman-{pid}-") if each != pid]
        return [rng.choice(found)] if found else []
    return {"driver": [pid], "driver and reaper": [reaper, pid], "reaper": [reaper]}[victim]


async def _replaced(process: asyncio.subprocess.Process, reaper: int) -> None:
    """Return when the driver tells of another one. Raises Fault."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(END_S):
            while int(await process.stdout.readline()) == reaper:
                pass
    except (TimeoutError, ValueError) as error:
        raise Fault("a reaper that was killed was not started again") from error


async def _drained(process: asyncio.subprocess.Process, victim: str) -> None:
    """Return when the driver has ended. One that lost a single container may go on, and is killed then."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20 if victim == "service" else END_S):
            while await process.stdout.readline():
                pass
    except TimeoutError:
        if victim != "service":
            raise Fault(f"a driver did not end within {END_S:.0f} s of its {victim}'s death") from None
        process.kill()
    await process.wait()


def _naming(word: str) -> list[int]:
    """Processes that have a word in what tells of them."""
    found, here = [], Path("/proc/self/ns/mnt").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            files = SEEN if (entry / "ns/mnt").readlink() != here else SEEN[:2]
            if any(word.encode() in (entry / file).read_bytes() for file in files):
                found.append(int(entry.name))
    return found


def _left(tmp: Path, pid: int) -> list[str]:
    """In words; nothing where nothing is left."""
    groups = [str(path) for parent in own_groups().values() for path in parent.glob(f"clawexp-*-{pid}-*")]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(tmp) in line]
    folders = [str(path) for path in tmp.glob("clawexp-*/*")]
    sockets = [line for line in Path("/proc/net/unix").read_text().splitlines() if str(tmp) in line]
    processes = [f"process {each}" for each in _naming(f"{tmp}/clawexp-") if each != os.getpid()]
    return [*groups, *mounts, *folders, *sockets, *processes]


async def kill_often(n: int, seed: int, tmp: Path) -> tuple[Counter[str], float]:
    """So many kills, and the longest time until nothing was left after a driver's death alone. Raises Fault."""
    seen: Counter[str] = Counter()
    longest = 0.0
    for number in range(n):
        name = ("podman", "bubblewrap")[number % 2]
        victims = VICTIMS if name == "podman" else VICTIMS[:-1]
        victim = victims[number // 2 % len(victims)]
        took = await kill_once(name, victim, tmp, random.Random(f"{seed}/{number}"))
        if victim in ("driver", "reaper"):
            longest = max(longest, took)
        seen[f"{victim} with {name}"] += 1
    async with driver("podman", tmp) as process:  # a following run works
        assert process.stdout is not None
        if not await asyncio.wait_for(process.stdout.readline(), END_S):
            raise Fault("no driver starts any more")
    return seen, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=50, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", choices=RUNTIMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        asyncio.run(drive(options.drive))
        return
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kx-") as folder:
        seen, longest = asyncio.run(kill_often(options.n, options.seed, Path(folder)))
    print(", ".join(f"{count} x {what}" for what, count in seen.items()))
    print(
        f"nothing left after any of {options.n} kills; after a driver's death alone, within {longest:.1f} s "
        f"without help; {time.monotonic() - begin:.0f} s"
    )


if __name__ == "__main__":
    main()
