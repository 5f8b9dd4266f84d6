"""Sandboxes made, used, misused and removed, many times over: is anything left?

    python benchmarks/soak_sandbox.py --cycles 10000 [--concurrency 8]

Bubblewrap and podman by turns, podman with and without warm sandboxes, from an image that holds busybox alone
(`apt-get install busybox-static`). What is done in each is drawn at random: a command, one that times out, one that
leaves daemons behind, a reset to a snapshot, files, a cancellation while it is made or while it runs. At the end,
processes, mounts, containers, control groups, sockets, folders and descriptors are counted; anything left is an error.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from clawexp.errors import RuntimeFault
from clawexp.protocols import Runtime
from clawexp.records import Command, Sandbox
from clawexp.runtime import image
from clawexp.runtime.bubblewrap import Bubblewrap
from clawexp.runtime.reaper import discard
from clawexp.runtime.remains import remains
from clawexp.runtime.rootless import call
from clawexp.scratch import scratch_folder
from sandbox import BOUNDS, PODMAN, place

PATH = {"PATH": "/bin:/usr/bin"}
LINKS = ("sh", "sleep", "echo", "cat", "setsid", "true", "kill", "mkdir", "ln")


def shell(script: str, timeout_s: float = 60.0) -> Command:
    return Command(argv=("sh", "-c", script), env=PATH, timeout_s=timeout_s)


async def daemons(sandbox: Sandbox) -> None:
    done = await sandbox.run(shell("setsid sleep 1000 >/dev/null 2>&1 & (setsid sleep 1000 &) ; exit 3"))
    assert done.code == 3


async def slow(sandbox: Sandbox) -> None:
    assert (await sandbox.run(shell("sleep 1000", timeout_s=0.2))).timed_out


async def files(sandbox: Sandbox) -> None:
    await sandbox.put({"a": b"x" * 10_000})
    assert (await sandbox.run(shell("cat a > b; mkdir -p d; ln -s / d/root"))).code == 0
    assert len(await sandbox.get("b")) == 10_000


async def snapshots(sandbox: Sandbox) -> None:
    await sandbox.put({"kept": b"1"})
    kept = await sandbox.snapshot()
    await sandbox.run(shell("echo 2 > kept; echo 3 > more"))
    await sandbox.reset(kept)
    assert await sandbox.files() == {"kept": 1}


async def cancelled(sandbox: Sandbox) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(random.uniform(0, 0.1)):
            await sandbox.run(shell("sleep 1000"))


USES = (daemons, slow, files, snapshots, cancelled)


@contextlib.contextmanager
def busybox_store() -> Iterator[Path]:
    """A store with an image of busybox alone, called as the base image is."""
    program = shutil.which("busybox")
    if program is None:
        sys.exit("there is no busybox in PATH; apt-get install busybox-static")
    with image.workshop() as home:
        packed = home.folder / "busybox.tar"
        with tarfile.open(packed, "w") as tar:
            for name in ("bin", "tmp", "work", "home", "home/agent", "run", "proc", "dev", "sys", "etc"):
                member = tarfile.TarInfo(name)
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            tar.add(program, "bin/busybox")
            for name in LINKS:
                member = tarfile.TarInfo(f"bin/{name}")
                member.type, member.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(member)
        packed.chmod(0o644)
        call(home.command("import", "--quiet", str(packed), image.NAME), home.env(), [home.folder], 600)
        store = image.cache() / f"soak-{os.getpid()}"
        home.storage.rename(store)
    try:
        yield store
    finally:
        discard(store)


@contextlib.asynccontextmanager
async def runtimes(root: Path) -> AsyncIterator[list[Runtime]]:
    with busybox_store() as store, patch.object(image, "store", lambda: store):
        async with (
            PODMAN.open([root], []) as cold,
            replace(PODMAN, warm=8).open([root], []) as warm,
        ):
            yield [Bubblewrap(**BOUNDS), cold, warm, warm]


async def worker(number: int, kinds: list[Runtime], root: Path, cycles: Iterator[int], counts: Counter[str]) -> None:
    for cycle in cycles:
        use = random.choice(USES)
        try:
            async with asyncio.timeout(random.uniform(0, 0.2) if cycle % 20 == 0 else None):
                async with place(kinds[cycle % len(kinds)], root, f"soak-{number}-{cycle}") as sandbox:
                    await use(sandbox)
            counts[use.__name__] += 1
        except TimeoutError:
            counts["cancelled as it was made"] += 1
        except RuntimeFault as fault:
            counts["faults"] += 1
            print(f"cycle {cycle}, {use.__name__}: {fault}")


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def soak(number: int, concurrency: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with scratch_folder("soak-") as root:
        root.chmod(0o711)
        async with runtimes(root) as kinds, asyncio.TaskGroup() as group:
            cycles = iter(range(number))
            for each in range(concurrency):
                group.create_task(worker(each, kinds, root, cycles, counts))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cx-") as scratch:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        asyncio.run(soak(4, 1))  # what is opened once for a process
        before, begun = descriptors(), time.monotonic()
        counts = asyncio.run(soak(options.cycles, options.concurrency))
        left = dataclasses.asdict(remains()) | {"descriptors": max(0, descriptors() - before)}
    wall = time.monotonic() - begun
    print(f"{options.cycles} cycles in {wall:.0f} s, {options.concurrency} at once: {dict(counts)}")
    print(f"left: {left}")
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    stray = [line for line in children.splitlines() if not line.startswith("ps ")]
    if any(left.values()) or stray or counts["faults"]:
        sys.exit(f"something is left or failed: {stray}")


if __name__ == "__main__":
    main()
