import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clawexp.capture.journal import AppendLog, CallJournal, read_calls, read_records
from clawexp.capture.syncer import Syncer
from clawexp.errors import JournalError
from clawexp.records import Call, Edit, Span


def call(position: int, parent: Call | None, new_ids: tuple[int, ...], shared: int | None = None) -> Call:
    before = parent.prompt_ids + parent.sampled_ids if parent else ()
    kept = len(before) if shared is None else shared
    return Call(
        rollout_id="r",
        call_id=f"r/{position}",
        position=position,
        dialect="openai_chat",
        kind="main",
        cause="root" if parent is None else "continue",
        parent=parent.call_id if parent else None,
        shared=kept,
        prompt_ids=before[:kept] + new_ids,
        sampled_ids=(90 + position, 91),
        logprobs=(-0.1 - position / 3, -1e-9),
        spans=(Span(version=1, start=0, end=1), Span(version=2, start=1, end=2)),
        finish_reason="stop",
        verdict="text",
        requested={"temperature": 0.2},
        submitted={"temperature": 1.0},
        edits=(Edit(rule="sampling.temperature", before=0.2, after=1.0),),
        rewritten=position == 1,
        started=1.5,
        finished=2.5,
        engine_s=0.9,
    )


def three_calls() -> list[Call]:
    first = call(0, None, (1, 2, 3))
    second = call(1, first, (4, 5))
    return [first, second, call(2, second, (6,), shared=2)]


def write(path: Path, calls: list[Call] | None = None) -> list[Call]:
    calls = calls or three_calls()

    async def commit() -> None:
        with CallJournal(path, syncer=Syncer()) as journal:
            for each in calls:
                await journal.commit(each, each.prompt_ids[each.shared :])

    asyncio.run(commit())
    return calls


def test_calls_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert write(tmp_path / "r.log") == read_calls(tmp_path / "r.log")


def test_a_prompt_is_stored_once(tmp_path: Path) -> None:
    calls = [call(0, None, tuple(range(50_000, 52_000)))]
    for position in range(1, 20):
        calls.append(call(position, calls[-1], (7, 8)))
    write(tmp_path / "r.log", calls)
    assert (tmp_path / "r.log").stat().st_size < 2000 * 6 + 20 * 1000
    assert read_calls(tmp_path / "r.log") == calls


@pytest.mark.parametrize("lost", [1, 2, 50])
def test_a_torn_tail_is_named_and_dropped_and_all_before_it_kept(
    tmp_path: Path, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.log"
    calls = write(path)
    assert (read_calls(path), caplog.text) == (calls, "")
    content = path.read_bytes()
    path.write_bytes(content[:-lost])
    assert read_calls(path) == calls[:2]
    assert f"{path}, line 3" in caplog.text


def test_a_last_line_of_rubbish_is_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    calls = write(path)
    with path.open("ab") as file:
        file.write(b"\0" * 300 + b"\n")
    assert read_calls(path) == calls


def test_a_changed_line_in_the_middle_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    write(path)
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"4,5", b"4,6")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(JournalError, match=r"r\.log, line 2"):
        read_calls(path)


@pytest.mark.parametrize("tear", [lambda line: line[:-3], lambda line: line[:-1], lambda line: bytes(300) + b"\n"])
def test_appending_names_a_torn_tail_and_goes_on_in_its_place(
    tmp_path: Path, tear: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.log"
    with AppendLog(path, fsync=False) as log:
        log.extend([{"a": 1}, {"b": "2" * 70_000}])
    first, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + tear(last))
    with AppendLog(path, fsync=False) as log:
        log.append({"c": 3})
    assert f"{path}, line 2" in caplog.text
    caplog.clear()
    with AppendLog(path, fsync=False) as log:
        log.append({"d": 4})
    assert list(read_records(path)) == [{"a": 1}, {"c": 3}, {"d": 4}]
    assert caplog.text == ""


def test_a_journal_that_holds_calls_is_not_written_again(tmp_path: Path) -> None:
    write(tmp_path / "r.log")
    with pytest.raises(JournalError, match="earlier attempt"):
        CallJournal(tmp_path / "r.log", syncer=None)


def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"gone\.log"):
        read_calls(tmp_path / "gone.log")


def test_what_append_returned_from_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from clawexp.capture.journal import AppendLog\n"
        "log = AppendLog(Path(sys.argv[1]), fsync=True)\n"
        "for n in range(5): log.append({'n': n})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "x.log")], env=dict(os.environ), check=False)
    assert done.returncode == -9
    assert [record["n"] for record in read_records(tmp_path / "x.log")] == [0, 1, 2, 3, 4]


async def test_a_descriptor_is_not_given_away_while_it_is_synced(tmp_path: Path) -> None:
    """Of two commits at once the second fails, and the first is at the disk with a number that must stay its own."""

    class Held(Syncer):
        async def sync(self, file: int) -> None:
            if begun.is_set():
                raise OSError("no room")
            begun.set()
            await let_go.wait()
            os.fstat(file)  # raises OSError where it is closed by now

    begun, let_go = asyncio.Event(), asyncio.Event()
    one, other = three_calls()[:2]
    journal = CallJournal(tmp_path / "r.log", syncer=Held())
    before = len(list(Path("/proc/self/fd").iterdir()))
    async with asyncio.TaskGroup() as group:
        group.create_task(journal.commit(one, one.prompt_ids[one.shared :]))
        await begun.wait()
        with pytest.raises(JournalError, match="no room"):
            await journal.commit(other, other.prompt_ids[other.shared :])
        let_go.set()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1


def test_experts_come_back_and_a_call_without_them_is_written_as_ever(tmp_path: Path) -> None:
    plain = three_calls()
    experts = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    write(tmp_path / "plain.log", plain)
    write(tmp_path / "told.log", [replace(plain[0], experts=experts), *plain[1:]])
    assert b"experts" not in (tmp_path / "plain.log").read_bytes()
    lines = [(tmp_path / name).read_bytes().splitlines() for name in ("plain.log", "told.log")]
    assert lines[0][1:] == lines[1][1:]
    found = read_calls(tmp_path / "told.log")
    assert found == plain
    assert found[0].experts is not None
    assert np.array_equal(found[0].experts, experts)
    assert found[1].experts is None
