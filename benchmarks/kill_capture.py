"""SIGKILL of a capture process at random moments: is a call lost whose answer somebody has read?

    python benchmarks/kill_capture.py --n 200

Each time a real process serves eight rollouts that call without a pause, and is killed. Then every journal must open,
and must hold each call whose answer its client received whole. A record that the kill has cut must be named, with its
file and line. A kill hardly ever falls into a write of a few pages, but the end of a machine does: so one journal of
each kill is cut inside its last record, as if that had not reached the disk, and must lose that record alone and say
so, to readers and to who appends.

Ends at the first fault, with what it is.
"""

import argparse
import asyncio
import itertools
import json
import logging
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from clawexp.capture.journal import AppendLog, read_calls
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import CaptureError
from clawexp.records import Call
from load.checkpoint import excerpt, write_checkpoint
from load.clawexp_capture import Captured, captured
from load.dialects import DIALECTS, Dialect
from load.stub import TOOK, set_delay, stub_process

ROLLOUTS = 8
LONGEST_S = 0.5
"""The kill comes within it, uniformly drawn, after a rollout's first answer."""
ENGINE_S = (0.0, 0.02)
JOURNALS = "clawexp.capture.journal"


class Fault(Exception):
    """What must not be."""


@dataclass(kw_only=True)
class Heard:
    """Names of torn records, as the journal logs them."""

    lines: list[str] = field(default_factory=list)

    def names(self, path: Path, line: int) -> bool:
        return any(f"{path}, line {line}:" in each for each in self.lines)


@contextmanager
def listening() -> Iterator[Heard]:
    """What is logged of journals inside."""
    heard = Heard()
    handler = logging.Handler()
    handler.emit = lambda record: heard.lines.append(record.getMessage())
    log = logging.getLogger(JOURNALS)
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield heard
    finally:
        log.removeHandler(handler)
        log.propagate = before


async def converse(
    url: str, key: str, dialect: Dialect, number: int, received: list[str], answered: asyncio.Event
) -> None:
    """A rollout that calls until nobody answers; `received` gets what each whole answer says that it took."""
    history = [dialect.user(excerpt(number, 300))]
    headers = dialect.headers(key) | {"content-type": "application/json"}
    with suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session:
            for turn in itertools.count():
                stream = bool((number + turn) % 2)
                body = json.dumps(dialect.body(history, stream))
                async with session.post(url + dialect.path(stream), data=body, headers=headers) as response:
                    content = await response.read()
                if response.status != 200:
                    raise Fault(f"answered {response.status}: {content[:500]!r}")
                told = dialect.read(content, stream)
                received.append(_took(told.text))
                answered.set()
                results = (dialect.result(call, excerpt(number + turn, 300)) for call in told.calls)
                history = [*history, *told.items, *results]


def _took(text: str) -> str:
    """Which answer it is: no two took as many microseconds, or hardly ever."""
    found = TOOK.search(text)
    if found is None:
        raise Fault(f"an answer came without its end: {text!r}")
    return found[1]


async def kill_once(engine: str, tokenizer: Tokenizer, folder: Path, rng: random.Random) -> Counter[str]:
    """Serve, kill, look. Raises Fault."""
    received: list[list[str]] = [[] for _ in range(ROLLOUTS)]
    journals: list[Path] = []
    with suppress(CaptureError):  # which says that the process has died
        async with captured(Path(tokenizer.name_or_path), engine, folder) as capture:
            await serve_until_killed(capture, journals, received, rng)
    seen = Counter(kills=1)
    for journal, told in zip(journals, received, strict=True):
        seen += look(journal, told, tokenizer)
    seen += cut(rng.choice([each for each in journals if each.stat().st_size]), rng)
    return seen


async def serve_until_killed(
    capture: Captured, journals: list[Path], received: Sequence[list[str]], rng: random.Random
) -> None:
    """Rollouts that call without a pause, and a kill at some moment; `journals` gets those of the rollouts."""
    answered = asyncio.Event()
    keys = [await capture.open() for _ in range(ROLLOUTS)]
    journals += [capture.live.journal(rollout_id) for rollout_id in capture.opened]
    async with asyncio.TaskGroup() as group:
        for number, key in enumerate(keys):
            dialect = DIALECTS[number % len(DIALECTS)]
            group.create_task(converse(capture.target.url, key, dialect, number, received[number], answered))
        await answered.wait()
        await asyncio.sleep(rng.uniform(0, LONGEST_S))
        os.kill(capture.pid, signal.SIGKILL)


def look(journal: Path, received: Sequence[str], tokenizer: Tokenizer) -> Counter[str]:
    """Open a journal after the kill. Raises Fault."""
    content = journal.read_bytes()
    with listening() as heard:
        calls = read_calls(journal)
    torn = not content.endswith(b"\n") and bool(content)
    if torn and not heard.names(journal, len(calls) + 1):
        raise Fault(f"{journal} ends inside a record, and that was not named: {heard.lines}")
    if heard.lines and not torn:
        raise Fault(f"{journal} is whole, and yet: {heard.lines}")
    kept = [_took(tokenizer.decode(call.sampled_ids)) for call in calls]
    lost = Counter(received) - Counter(kept)
    if lost:
        raise Fault(f"{journal} lacks {sum(lost.values())} of {len(received)} calls that were answered: {lost}")
    return Counter(journals=1, received=len(received), kept=len(calls), torn=int(torn))


def cut(journal: Path, rng: random.Random) -> Counter[str]:
    """Lose a part of the last record, and see that it alone is dropped, with its name. Raises Fault."""
    with listening():
        calls = read_calls(journal)
    whole = b"".join(line for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
    last = whole.splitlines(keepends=True)[-1]
    journal.write_bytes(whole[: -rng.randint(1, len(last) - 1)])
    for what, kept in (("read", _read), ("appended to", _appended)):
        with listening() as heard:
            after = kept(journal)
        if not heard.names(journal, len(calls)):
            raise Fault(
                f"{journal}, line {len(calls)} is torn, and when it was {what} that was not named: {heard.lines}"
            )
        if after != calls[:-1]:
            raise Fault(f"{journal} was cut in its last record, and more than that is gone when it is {what}")
    return Counter(cut=1)


def _read(journal: Path) -> list[Call]:
    return read_calls(journal)


def _appended(journal: Path) -> list[Call]:
    AppendLog(journal, fsync=False).close()
    return read_calls(journal)


async def kill_often(n: int, at_once: int, seed: int, folder: Path) -> Counter[str]:
    """So many kills. Raises Fault, in a group."""
    (folder / "checkpoint").mkdir()
    tokenizer = write_checkpoint(folder / "checkpoint")
    seen: Counter[str] = Counter()
    rounds = iter(range(n))

    async def some(engine: str) -> None:
        for number in rounds:
            run = folder / f"run-{number}"
            seen.update(await kill_once(engine, tokenizer, run, random.Random(f"{seed}/{number}")))

    async with stub_process(folder / "checkpoint") as engine:
        await set_delay(engine, *ENGINE_S)
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(some(engine))
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="kills")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(kill_often(options.n, options.at_once, options.seed, Path(folder)))
    print(
        f"{seen['kills']} kills of a capture process with {ROLLOUTS} rollouts: all {seen['journals']} journals open, "
        f"all {seen['received']} calls whose answers were received are among the {seen['kept']} there; "
        f"{seen['torn']} records torn by a kill and {seen['cut']} cut afterwards, each named with file and line"
    )
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
