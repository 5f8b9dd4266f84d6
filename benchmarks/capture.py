"""What the model boundary costs, beside its neighbours under the same load: latency and CPU a call, calls a second.

    python benchmarks/capture.py
    python benchmarks/capture.py --litellm /tmp/venv-litellm --verifiers /tmp/venv-verifiers
    python benchmarks/capture.py --parts load --dialects chat --rollouts 64 --seconds 4

Neighbours run in environments of their own, and are left out where none is given:

    python -m venv /tmp/venv-litellm && /tmp/venv-litellm/bin/pip install 'litellm[proxy]==1.108.7'
    python -m venv /tmp/venv-verifiers && /tmp/venv-verifiers/bin/pip install verifiers==0.4.0

Part `load`. Every rollout is a conversation that grows by a tool call and its result per call, 12 calls, over one
connection. The engine is a stub; it tells in its answer how long it took, and what a call took beyond that was added.
The product keeps to core 0, load and stub share core 1; calls that begin after the warm-up count. The stub waits 0.5 to
1.5 s, uniformly drawn, or answers at once. `direct` asks the stub itself. CPU is the product's process. `waited` is
time, per call, in which that process's main thread could run and something else had its core: where it is not small the
machine was busy, and latencies say little.

Part `long`: a rollout of 200 calls and 64,000 tokens inside this process, what its last calls cost stage by stage, and
the exponents by which encoded tokens and journal bytes grow with the number of calls. Part `memory`: 1,000 rollouts
open in one worker, then long ones.
"""

import argparse
import asyncio
import gc
import itertools
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from clawexp.capture.tokenizer import Tokenizer
from load import neighbours
from load.checkpoint import write_checkpoint
from load.clawexp_capture import Captured, captured
from load.dialects import DIALECTS, Dialect
from load.drive import Measured, Pace, Target, drive, visit
from load.long_rollout import CALLS, LAST, MATCHED, exponent, played
from load.process import LOAD_CORE, PRODUCT_CORE, keep_to, resident_kib
from load.stub import set_delay, stub_process

PARTS = ("load", "long", "memory")
PRODUCTS = ("direct", "clawexp", "litellm", "verifiers")
ENGINES = {"1 s": (0.5, 1.5), "at once": (0.0, 0.0)}
GROWTH = (25, 50, 100, 200)
OPEN = 1000
IDLE_CALLS = 3
LONG_OPEN = 20
LONG_CALLS = (40, 160)
LITELLM_ROLLOUTS = 64
"""With a 1 s engine LiteLLM's proxy takes no more: its worker makes fewer than 100 calls a second."""

Row = tuple[str, str, str, int, str]
"""Product, dialect, JSON or SSE, rollouts, engine."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """Something between harness and engine."""

    name: str
    targets: Mapping[str, Target]
    """By dialect."""
    capture: Captured | None = None


@asynccontextmanager
async def product(name: str, options: argparse.Namespace, engine: str, folder: Path) -> AsyncIterator[Product]:
    """A live one."""
    checkpoint, work = folder / "checkpoint", folder / name
    work.mkdir(exist_ok=True)
    match name:
        case "direct":
            target = Target(url=engine, pid=os.getpid(), open=_nothing)
            yield Product(name=name, targets={"chat": target, "anthropic": target})
        case "clawexp":
            async with captured(checkpoint, engine, work) as capture:
                yield Product(name=name, targets={each.name: capture.target for each in DIALECTS}, capture=capture)
        case "litellm":
            async with neighbours.litellm(options.litellm, engine, work) as targets:
                yield Product(name=name, targets=targets)
        case _:
            async with neighbours.verifiers(options.verifiers, engine, checkpoint, work) as targets:
                yield Product(name=name, targets=targets)


async def _nothing() -> str:
    return "sk-none"


async def measure_load(options: argparse.Namespace, folder: Path) -> dict[Row, Measured]:
    """One row after the other."""
    print(  # times in ms, sizes in kB
        "product    dialect    form  rollouts  engine   calls  added P50       P99  CPU a call  waited  calls/s   sent"
    )
    rows: dict[Row, Measured] = {}
    async with stub_process(folder / "checkpoint") as engine:
        for name in options.products:
            async with product(name, options, engine, folder) as live:
                for pid in {target.pid for target in live.targets.values()} - {os.getpid()}:
                    keep_to(PRODUCT_CORE, pid)
                chosen = [each for each in DIALECTS if each.name in options.dialects and each.name in live.targets]
                for dialect, stream in itertools.product(chosen, (False, True)):
                    rows.update(await _measured(live, dialect, stream, options, engine))
                if live.capture is not None:
                    print(f"clawexp's journals hold: {dict(await live.capture.close())}")
    return rows


async def _measured(
    live: Product, dialect: Dialect, stream: bool, options: argparse.Namespace, engine: str
) -> dict[Row, Measured]:
    rows = {}
    for waits, rollouts in _loads(live.name, options):
        await set_delay(engine, *ENGINES[waits])
        pace = Pace(rollouts=rollouts, warm_s=options.warm, measured_s=options.seconds)
        gc.collect()
        gc.freeze()
        row = (live.name, dialect.name, "SSE" if stream else "JSON", rollouts, waits)
        rows[row] = await drive(live.targets[dialect.name], dialect, stream, pace)
        _print_row(row, rows[row])
    return rows


def _loads(name: str, options: argparse.Namespace) -> list[tuple[str, int]]:
    """Engine and rollouts."""
    waiting = [("1 s", n) for n in options.rollouts if name != "litellm" or n <= LITELLM_ROLLOUTS]
    return [*waiting, ("at once", min(options.rollouts))]


def _print_row(row: Row, seen: Measured) -> None:
    name, dialect, form, rollouts, waits = row
    own = f"{seen.cpu_ms:11.2f} {seen.kept_waiting_ms:7.2f}" if name != "direct" else f"{'-':>11} {'-':>7}"
    added = f"{seen.percentile(0.5):10.1f} {seen.percentile(0.99):9.1f}"
    print(
        f"{name:10} {dialect:10} {form:5} {rollouts:7d}  {waits:8} {len(seen.added_ms):5d} {added} {own} "
        f"{seen.calls_s:8.0f} {seen.body_kb:8.1f}",
        flush=True,
    )


def print_ratios(rows: Mapping[Row, Measured]) -> None:
    """CPU per call beside LiteLLM's, in the same run."""
    for (name, dialect, form, rollouts, waits), seen in rows.items():
        theirs = rows.get(("litellm", dialect, form, rollouts, waits))
        if name == "clawexp" and theirs is not None:
            print(
                f"{dialect}, {form}, {rollouts} rollouts, engine {waits}: CPU per call is {seen.cpu_ms:.2f} ms, "
                f"{seen.cpu_ms / theirs.cpu_ms:.2f} of LiteLLM's {theirs.cpu_ms:.2f}"
            )


def measure_long(tokenizer: Tokenizer, dialects: Sequence[Dialect], folder: Path) -> None:
    """The 200th call, stage by stage, and growth."""
    for dialect in dialects:
        last = played(tokenizer, dialect, CALLS, folder)
        conversation = sum(last.stages_ms[stage] for stage in MATCHED)
        stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in last.stages_ms.items())
        print(
            f"{dialect.name}: call {CALLS} has {last.prompt_tokens} tokens in {last.body_bytes / 1000:.0f} kB; its "
            f"match and delta take {conversation:.2f} ms (median of the last {LAST}; slowest {last.slowest_ms:.2f}); "
            f"all stages, ms: {stages}"
        )
    first, *runs = (played(tokenizer, dialects[0], calls, folder) for calls in (1, *GROWTH))
    for what, once, amounts in (
        ("encoded tokens", first.encoded, [run.encoded for run in runs]),
        ("journal bytes", first.journal_bytes, [run.journal_bytes for run in runs]),
    ):
        further = exponent([calls - 1 for calls in GROWTH], [amount - once for amount in amounts])
        print(f"{what} of 1 call: {once}; of {GROWTH} calls: {amounts}; exponent, beyond the first call, {further:.2f}")


async def measure_memory(folder: Path) -> None:
    """Of one worker with many rollouts open."""
    async with (
        stub_process(folder / "checkpoint") as engine,
        captured(folder / "checkpoint", engine, folder) as capture,
    ):
        empty = resident_kib(capture.pid)
        keys = [await capture.open() for _ in range(OPEN)]
        opened = resident_kib(capture.pid)
        left = iter(keys)

        async def take() -> str:
            return next(left)

        target = Target(url=capture.target.url, pid=capture.pid, open=take)
        await visit(target, DIALECTS[0], OPEN, IDLE_CALLS)
        used = resident_kib(capture.pid)
        print(
            f"{OPEN} rollouts open in one worker: {(opened - empty) / OPEN:.1f} KiB each before their first call, "
            f"{(used - empty) / OPEN:.1f} KiB each after {IDLE_CALLS} calls; the process {used / 1024:.0f} MiB, "
            f"{empty / 1024:.0f} without rollouts"
        )
        for calls in LONG_CALLS:
            keys = [await capture.open() for _ in range(LONG_OPEN)]
            left, before = iter(keys), resident_kib(capture.pid)
            await visit(target, DIALECTS[0], LONG_OPEN, calls)
            print(f"{LONG_OPEN} more of {calls} calls: {(resident_kib(capture.pid) - before) / LONG_OPEN:.0f} KiB each")
        await capture.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--products", nargs="+", choices=PRODUCTS, default=PRODUCTS)
    parser.add_argument("--dialects", nargs="+", choices=[each.name for each in DIALECTS])
    parser.add_argument("--rollouts", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window that counts")
    parser.add_argument("--warm", type=float, default=3.0, help="seconds before it")
    parser.add_argument("--litellm", type=Path, metavar="VENV")
    parser.add_argument("--verifiers", type=Path, metavar="VENV")
    options = parser.parse_args()
    options.dialects = options.dialects or [each.name for each in DIALECTS]
    options.products = [name for name in options.products if _present(name, options)]
    python, cores = platform.python_version(), os.cpu_count()
    print(f"Python {python}, {cores} cores, load average {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as temporary:
        keep_to(LOAD_CORE, os.getpid())
        folder = Path(temporary)
        (folder / "checkpoint").mkdir()
        tokenizer = write_checkpoint(folder / "checkpoint")
        if "load" in options.parts:
            print_ratios(asyncio.run(measure_load(options, folder)))
        if "long" in options.parts:
            measure_long(tokenizer, [each for each in DIALECTS if each.name in options.dialects], folder)
        if "memory" in options.parts:
            asyncio.run(measure_memory(folder))
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


def _present(name: str, options: argparse.Namespace) -> bool:
    if name in ("litellm", "verifiers") and getattr(options, name) is None:
        print(f"{name} is left out: --{name} names no environment with it")
        return False
    return True


if __name__ == "__main__":
    main()
