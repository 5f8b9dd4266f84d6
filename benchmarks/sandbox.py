"""What a sandbox costs: made, leased warm, a command, 1 MB in and out, made as new, removed.

    python benchmarks/sandbox.py [--concurrency 1 16 64] [--cycles 20] [--idle 500] [--oci-runtime runsc]

P50 and P99 in ms. Beside ours, on the same podman in the same run: the podman CLI (`podman run --rm`) and podman-py's
own calls. `--idle`: so many sandboxes alive at once, and the memory that they take. Read the load that is printed: with
other work on the machine, all figures are that much larger.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from clawexp.protocols import Runtime
from clawexp.records import Command, Needs, Owner, Sandbox, Task, Verdict
from clawexp.runtime import image
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.runtime.podman import Podman
from clawexp.runtime.podman_service import Service, service

MEGABYTE = bytes(range(256)) * 4096
TRUE = Command(argv=("true",))
RUNS = 5
"""Commands in a sandbox beside its first one."""
BOUNDS: dict[str, Any] = {
    "file_bytes": 2_000_000,
    "memory_mb": 256,
    "cpus": 1.0,
    "pids": 256,  # the kernel of gVisor takes some of them
    "disk_mb": 1024,
    "require_limits": False,
}
PODMAN = Podman(
    **BOUNDS,
    warm=0,
    creators=4,
    oci_runtime="crun",
    base="package:base",
    build_network="none",
    build_s=600,
    builds=1,
)


class AnyGrader:
    """Every result is right."""

    async def grade(self, sandbox: Sandbox) -> Verdict:
        return Verdict(score=1.0)


TASK = Task(id="t", instruction="", files={}, grader=AnyGrader(), split="train")


class Times:
    """Seconds by name, in one table."""

    def __init__(self) -> None:
        self.taken: defaultdict[str, list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.taken[name].append(time.monotonic() - begun)

    def print(self, head: str) -> None:
        load, *_ = os.getloadavg()
        print(f"\n{head}, load {load:.0f}")
        for name, taken in self.taken.items():
            ordered = sorted(1000 * each for each in taken)
            p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
            print(f"  {name:<24} {p50:9.1f} {p99:9.1f}   n={len(ordered)}")


def place(runtime: Runtime, root: Path, name: str) -> AbstractAsyncContextManager[Sandbox]:
    owner = Owner(run_id="bench", rollout_id=name, root=root, proxy_socket=None, proxy_port=1)
    return runtime.sandbox(TASK, Needs(), owner)


async def cycle(runtime: Runtime, root: Path, name: str, times: Times) -> None:
    """All that is done with one sandbox."""
    async with contextlib.AsyncExitStack() as stack:
        with times.of("to the first command"):
            with times.of("made or leased"):
                sandbox = await stack.enter_async_context(place(runtime, root, name))
            await sandbox.run(TRUE)
        for _ in range(RUNS):
            with times.of("run true"):
                await sandbox.run(TRUE)
        with times.of("put 1 MB"):
            await sandbox.put({"big": MEGABYTE})
        with times.of("get 1 MB"):
            await sandbox.get("big")
        with times.of("reset to first command"):
            await sandbox.reset()
            await sandbox.run(TRUE)
        begun = time.monotonic()
    times.taken["removed or returned"].append(time.monotonic() - begun)


async def measured(head: str, runtime: Runtime, root: Path, concurrency: int, cycles: int, kept_warm: bool) -> None:
    if kept_warm:  # what is measured is a pool that has seen this demand
        await at_once(runtime, root, "first", concurrency, 1, Times())
        await asyncio.sleep(1)
    times = Times()
    begun = time.monotonic()
    await at_once(runtime, root, head.replace(" ", "-"), concurrency, cycles, times)
    wall = time.monotonic() - begun
    times.print(f"{head}, {concurrency} at once, {concurrency * cycles / wall:.1f} sandboxes/s")


async def at_once(runtime: Runtime, root: Path, head: str, concurrency: int, cycles: int, times: Times) -> None:
    async def worker(number: int) -> None:
        for turn in range(cycles):
            await cycle(runtime, root, f"{head}-{number}-{turn}", times)

    async with asyncio.TaskGroup() as group:
        for number in range(concurrency):
            group.create_task(worker(number))


async def peers(alive: Service, concurrency: int, cycles: int) -> None:
    """The podman CLI and podman-py's own calls, against the same service."""
    times = Times()
    cli = ["podman", "--remote", "--url", f"unix://{alive.socket}", "run", "--rm", "--network=none", image.NAME, "true"]

    def by_command() -> None:
        begun = time.monotonic()
        done = subprocess.run(cli, capture_output=True)  # some of many at once end with 125 or 127
        name = "podman run --rm" if done.returncode == 0 else "podman run --rm, failed"
        times.taken[name].append(time.monotonic() - begun)

    def by_library() -> None:
        with times.of("podman-py create, start"):
            handle = alive.client.containers.create(image.NAME, ["sleep", "1000"], network_mode="none")
            handle.start()
        with times.of("podman-py exec true"):
            handle.exec_run(["true"])
        with times.of("podman-py kill, remove"):
            handle.kill()
            handle.remove(force=True)

    async def worker() -> None:
        for _ in range(cycles):
            await asyncio.to_thread(by_command)
            await asyncio.to_thread(by_library)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    times.print(f"peers, {concurrency} at once")


def resident_kb() -> int:
    """Of all processes, shared pages counted in part."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*/smaps_rollup"):
        with contextlib.suppress(OSError):
            total += next(int(line.split()[1]) for line in entry.read_text().splitlines() if line.startswith("Pss:"))
    return total


async def idle(runtime: Runtime, root: Path, number: int) -> None:
    before, begun = resident_kb(), time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        for each in range(number):
            sandbox = await stack.enter_async_context(place(runtime, root, f"idle-{each}"))
            await sandbox.run(TRUE)
        taken = (resident_kb() - before) / number
        print(f"\n{number} idle sandboxes after {time.monotonic() - begun:.0f} s: {taken:.0f} kB each")


async def all_of(options: argparse.Namespace, root: Path) -> None:
    bubblewrap, podman = Bubblewrap(**BOUNDS), replace(PODMAN, oci_runtime=options.oci_runtime)
    PODMAN.prepare()
    for concurrency in options.concurrency:
        cycles = max(1, options.cycles // concurrency)
        await measured("bubblewrap", bubblewrap, root, concurrency, cycles, kept_warm=False)
        async with podman.open([root], []) as cold:
            await measured("podman", cold, root, concurrency, cycles, kept_warm=False)
        async with replace(podman, warm=2 * concurrency).open([root], []) as warm:
            await measured("podman warm", warm, root, concurrency, cycles, kept_warm=True)
        async with service([image.store()], [image.cache().parent]) as alive:
            await peers(alive, concurrency, cycles)
    if options.idle:
        async with podman.open([root], []) as opened:
            await idle(opened, root, options.idle)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--cycles", type=int, default=64, help="of each kind and concurrency, at least one a worker")
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--oci-runtime", choices=("crun", "runc", "runsc"), default="crun")
    with tempfile.TemporaryDirectory(prefix="clawexp-bench-") as folder:
        Path(folder).chmod(0o711)
        asyncio.run(all_of(parser.parse_args(words), Path(folder)))


if __name__ == "__main__":
    main()
