import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clawexp.logger.console import PLAIN_BARS, Console, curve, duration, number, shorten, table
from clawexp.outcome import Outcome
from clawexp.records import Rollout

LOGGER = Console(
    trend="reward/mean",
    columns={"reward": "reward/mean", "loss": "learner/loss"},
    counts="outcome/",
    usual=("completed",),
    table=("eval/",),
)


async def test_a_step_is_one_line_of_the_chosen_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with LOGGER.open(tmp_path, {"steps": 20}, resume=False) as sink:
        for step in range(3):
            sink.log(step, {"reward/mean": 0.25 * step, "learner/loss": -0.0123, "engine/hidden": 4})
    out, err = capsys.readouterr()
    assert out == ""
    first, _, third, *_ = err.splitlines()
    assert re.fullmatch(r"step  1/20  reward 0 .  loss -0\.0123  eta \d.*", first)
    assert re.fullmatch(r"step  3/20  reward 0\.5 ...  loss -0\.0123  eta \d.*", third)
    assert "hidden" not in err


async def test_only_unusual_counts_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"outcome/completed": 6, "outcome/truncated": 2, "outcome/parse_fault": 0}
    async with LOGGER.open(tmp_path, {"steps": 1}, resume=False) as sink:
        sink.log(0, {"reward/mean": 1.0, **counts})
    line = capsys.readouterr().err.splitlines()[0]
    assert "truncated 2" in line
    assert "completed" not in line
    assert "parse_fault" not in line
    assert "loss" not in line


async def test_metrics_of_no_column_are_shown_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with LOGGER.open(tmp_path, {"steps": 9}, resume=False) as sink:
        sink.log(0, {"eval/score": 0.75})
        sink.log(0, {"reward/mean": 0.5})
        sink.log(0, {"eval/score": 0.875})
    first, _, last, *_ = capsys.readouterr().err.splitlines()
    assert first == "before step 1/9  eval/score 0.75"
    assert last == "after step 1/9  eval/score 0.875"


async def test_a_table_of_columns_and_summary_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with LOGGER.open(tmp_path, {"steps": 3}, resume=False) as sink:
        for step, reward in enumerate((0.25, 0.125, 0.5)):
            sink.log(step, {"reward/mean": reward, "eval/score": 0.75, "engine/hidden": 3})
        sink.summary({"reward/mean": 0.5, "run/best": 0.875})
    lines = capsys.readouterr().err.splitlines()[3:]
    assert [line.split() for line in lines] == [
        ["first", "last", "min", "max"],
        ["reward", "0.25", "0.5", "0.125", "0.5"],
        ["eval/score", "0.75", "0.75", "0.75", "0.75"],
        ["run/best", "0.875"],
    ]


async def test_only_a_resumed_run_says_where_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with LOGGER.open(tmp_path, {"steps": 9}, resume=True) as sink:
        sink.rewind(0)
        sink.rewind(4)
    assert capsys.readouterr().err == "resumed at step 5/9\n"


async def test_a_reason_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rollout: Callable[..., Rollout]
) -> None:
    fault = "Traceback\n" + "x" * 300 + "\nError: no such file"
    async with LOGGER.open(tmp_path, {"steps": 3}, resume=False) as sink:
        sink.rollouts(0, [rollout(0), rollout(1, Outcome.HARNESS_FAULT, fault)])
        sink.rollouts(1, [rollout(2, Outcome.HARNESS_FAULT, fault), rollout(3, reason="not exact")])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("  harness_fault in r1: ...")
    assert line.endswith("Error: no such file")
    assert len(line) < 160


async def test_values_that_are_no_numbers_do_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LOGGER.open(tmp_path, {"steps": 2}, resume=False) as sink:
        for value in (float("nan"), float("inf")):
            sink.log(0, {"reward/mean": value, "learner/loss": value})
    assert "reward nan ." in capsys.readouterr().err


def test_numbers_keep_the_digits_that_matter() -> None:
    assert [number(value) for value in (0.5312, 1.23e-5, 128, 123456, 2.0)] == [
        "0.531",
        "1.23e-05",
        "128",
        "123456",
        "2",
    ]


def test_a_curve_goes_from_the_lowest_to_the_highest() -> None:
    assert curve([0.0, 1.0, 0.5], PLAIN_BARS) == "_@" + PLAIN_BARS[4]
    assert curve([2.0, 2.0], PLAIN_BARS) == "__"
    assert curve([float("nan")], PLAIN_BARS) == "."


def test_durations_are_short() -> None:
    assert [duration(seconds) for seconds in (7.4, 187, 3840)] == ["7s", "3m07s", "1h04m"]


def test_a_long_reason_keeps_its_end() -> None:
    assert shorten("a" * 500 + "end").endswith("end")
    assert len(shorten("a" * 500)) == 120
    assert shorten("short") == "short"


def test_a_table_is_aligned() -> None:
    assert table([("a", "1"), ("bcd", "10")]) == "a     1\nbcd  10"
