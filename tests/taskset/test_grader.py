import os
from pathlib import Path
from typing import Any

import pytest

from clawexp.taskset.grader import (
    MANY_WEIGHTS,
    READ_BYTES,
    VALUE_WEIGHTS,
    FileGrader,
    canonical,
    overlap,
    plausible,
)

VALUE = FileGrader(path="out.txt", answer="8080", shape="value", weights=VALUE_WEIGHTS, inputs={"a.conf": b"x = 1"})
EDIT = FileGrader(
    path="a.conf",
    answer="x = 1\ny = 9\nz = 3",
    shape="lines",
    weights=MANY_WEIGHTS,
    inputs={},
    before="x = 1\ny = 2\nz = 3",
)


async def grade(bench: Any, written: bytes | None, grader: FileGrader = VALUE) -> Any:
    sandbox = bench.memory(a_conf=b"x = 1") if grader is VALUE else bench.memory()
    if written is not None:
        await sandbox.put({grader.path: written})
    return await grader.grade(sandbox)


async def test_where_only_the_order_is_wrong_another_wrong_order_gains_nothing(bench: Any) -> None:
    sort = FileGrader(path="a.txt", answer="a\nb\nc", shape="lines", weights=MANY_WEIGHTS, inputs={}, before="c\nb\na")
    assert (await grade(bench, b"b\nc\na", sort)).checks["overlap"] == 0.0
    assert (await grade(bench, b"a\nb\nc", sort)).score == 1.0


@pytest.mark.parametrize("weights", [VALUE_WEIGHTS, MANY_WEIGHTS])
def test_weights_add_up_to_one(weights: dict[str, float]) -> None:
    assert sum(weights.values()) == pytest.approx(1.0)


async def test_the_answer_scores_one_with_or_without_a_last_newline(bench: Any) -> None:
    assert (await grade(bench, b"8080")).score == 1.0
    assert (await grade(bench, b"8080\n")).score == 1.0
    assert (await grade(bench, b"8080\n\n")).score < 1.0
    assert (await grade(bench, b" 8080")).score < 1.0


async def test_better_answers_score_more(bench: Any) -> None:
    scores = [(await grade(bench, text)).score for text in (b"7", b"a = 1\nport = 8080", b"port = 8080", b"8080")]
    assert scores == sorted(scores)
    assert len(set(scores)) == 4
    assert scores[0] == pytest.approx(0.1)


async def test_a_missing_file_scores_zero_and_says_so(bench: Any) -> None:
    verdict = await grade(bench, None)
    assert verdict.score == 0.0
    assert verdict.checks == {"exists": 0, "format": 0, "overlap": 0, "exact": 0, "inputs": 1}
    assert verdict.reason == "out.txt does not exist, or is no regular file"


@pytest.mark.parametrize(
    ("written", "reason"),
    [(b"8080\0", "binary"), (b"\xff\xfe8080", "not UTF-8"), (b"8080\n" * READ_BYTES, "more than the 65536")],
)
async def test_an_unreadable_file_scores_zero_and_says_why(bench: Any, written: bytes, reason: str) -> None:
    verdict = await grade(bench, written)
    assert verdict.score == 0.0
    assert reason in verdict.reason


async def test_a_large_file_is_never_read(bench: Any, tmp_path: Path) -> None:
    sandbox = bench.folder(tmp_path)
    await sandbox.put(VALUE.inputs)
    with (tmp_path / "out.txt").open("wb") as file:
        file.truncate(10**12)  # sparse: reading it would not fit into memory
    verdict = await VALUE.grade(sandbox)
    assert verdict.score == 0.0
    assert "1000000000000 bytes" in verdict.reason


async def test_a_link_or_a_pipe_in_place_of_the_file_is_no_file(bench: Any, tmp_path: Path) -> None:
    sandbox = bench.folder(tmp_path)
    await sandbox.put({"a.conf": b"x = 1", "b.txt": b"8080"})
    (tmp_path / "out.txt").symlink_to("b.txt")
    assert (await VALUE.grade(sandbox)).score == 0.0
    (tmp_path / "out.txt").unlink()
    os.mkfifo(tmp_path / "out.txt")
    assert (await VALUE.grade(sandbox)).score == 0.0


async def test_a_changed_or_lost_input_scores_zero(bench: Any) -> None:
    for inputs in ({"a.conf": b"x = 2"}, {"a.conf": b"x = 1\n"}, {}):
        sandbox = bench.memory()
        await sandbox.put({**inputs, "out.txt": b"8080"})
        verdict = await VALUE.grade(sandbox)
        assert verdict.score == 0.0
        assert verdict.checks["exact"] == 1.0
        assert verdict.reason == "input a.conf was changed"


async def test_an_edit_is_measured_from_what_was_there(bench: Any) -> None:
    assert (await grade(bench, b"x = 1\ny = 2\nz = 3", EDIT)).score == 0.0
    touched = await grade(bench, b"x = 1\ny = 2\nz = 4", EDIT)
    assert touched.checks["overlap"] == 0.0
    assert touched.score == pytest.approx(0.2)
    assert (await grade(bench, b"x = 1\ny = 9\nz = 3", EDIT)).score == 1.0


async def test_the_right_fields_in_the_wrong_order_are_not_exact(bench: Any) -> None:
    verdict = await grade(bench, b"y = 9\nx = 1\nz = 3", EDIT)
    assert verdict.checks["exact"] == 0.0
    assert verdict.score < 0.5


async def test_a_long_answer_is_cut_in_the_reason(bench: Any) -> None:
    assert len((await grade(bench, b"9" * 5000)).reason) < 200


def test_spacing_does_not_matter_in_json_and_in_markdown_tables() -> None:
    assert canonical("json", '[ {"a":"1"} ]\n') == canonical("json", '[{"a": "1"}]')
    assert canonical("markdown", "|a|b|\n|:-|---|\n|1|2|") == canonical(
        "markdown", "| a | b |\n| --- | --- |\n| 1 | 2 |"
    )
    assert canonical("csv", "a, b") != canonical("csv", "a,b")


@pytest.mark.parametrize("text", ["", "[", "[" * 60_000, "9" * 9000])
def test_text_that_is_no_json_is_no_answer(text: str) -> None:
    assert canonical("json", text) is None
    assert not plausible("json", text, '[{"a": "1"}]')


@pytest.mark.parametrize("text", ["", "|", "| a | b |", "| a |\n| 1 |", "| a | b |\n| --- |\n| 1 | 2 |", "a\n---"])
def test_text_that_is_no_table_is_no_answer(text: str) -> None:
    assert canonical("markdown", text) is None


def test_a_plausible_shape_may_be_wrong_inside() -> None:
    assert plausible("value", "9", "8080")
    assert not plausible("value", "a\nb", "8080")
    assert plausible("csv", "a,b\n1,2", "x,y\n3,4")
    assert not plausible("csv", "a,b\n1", "x,y\n3,4")
    assert plausible("json", '[{"a": 7}]', '[{"a": "1"}]')
    assert not plausible("json", '{"a": 7}', '[{"a": "1"}]')
    assert plausible("markdown", "|a|\n|-|\n|1|", "|b|\n|-|\n|2|")
    assert not plausible("markdown", "|a|\n|-|", "|b|\n|-|\n|2|")


def test_overlap_counts_missing_and_extra_fields_alike() -> None:
    assert overlap("a b c", "c b a") == 1.0
    assert overlap("a", "a b") == overlap("a b", "a")
    assert overlap("", "a") == overlap("x", "a") == 0.0
    assert overlap("a a a", "a") == 0.5
