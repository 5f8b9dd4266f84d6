import json
from pathlib import Path

import pytest

from clawexp.logger.jsonl import Jsonl

LOGGER = Jsonl(file="metrics.jsonl")


def lines(run: Path) -> list[dict[str, float | None]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


async def test_every_step_is_a_line_at_once(tmp_path: Path) -> None:
    async with LOGGER.open(tmp_path, {}, resume=False) as sink:
        sink.log(0, {"reward/mean": 0.5, "batch/tokens": 12})
        assert lines(tmp_path) == [{"step": 0, "reward/mean": 0.5, "batch/tokens": 12}]
        sink.log(1, {"reward/mean": 1.0})
        assert [line["step"] for line in lines(tmp_path)] == [0, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
async def test_what_is_no_number_is_null(tmp_path: Path, value: float) -> None:
    async with LOGGER.open(tmp_path, {}, resume=False) as sink:
        sink.log(0, {"learner/loss": value})
        sink.summary({"reward/last": value})
    assert lines(tmp_path) == [{"step": 0, "learner/loss": None}]
    assert json.loads((tmp_path / "summary.json").read_text()) == {"reward/last": None}


async def test_a_resumed_run_drops_the_steps_it_does_again(tmp_path: Path) -> None:
    async with LOGGER.open(tmp_path, {}, resume=False) as sink:
        for step in range(5):
            sink.log(step, {"x": float(step)})
    async with LOGGER.open(tmp_path, {}, resume=True) as sink:
        sink.rewind(3)
        assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2]
        sink.log(3, {"x": 30.0})
    assert [line["x"] for line in lines(tmp_path)] == [0, 1, 2, 30]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


async def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "x": 1}\n{"step": 1, "x"')
    async with LOGGER.open(tmp_path, {}, resume=True) as sink:
        sink.log(1, {"x": 2})
    assert lines(tmp_path) == [{"step": 0, "x": 1}, {"step": 1, "x": 2}]


async def test_a_run_may_resume_without_a_file(tmp_path: Path) -> None:
    async with LOGGER.open(tmp_path, {}, resume=True) as sink:
        sink.rewind(4)
        sink.log(4, {"x": 1})
    assert lines(tmp_path) == [{"step": 4, "x": 1}]
