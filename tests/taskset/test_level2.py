import json

from clawexp.taskset.draw import Draw
from clawexp.taskset.families.level2 import csv_json, follow, triage


def test_csv_json_holds_a_string_for_every_cell() -> None:
    draft = csv_json(Draw("train", "0"))
    ((_, text),) = draft.files.items()
    header, *rows = [line.split(",") for line in text.split("\n")]
    assert json.loads(draft.answer) == [dict(zip(header, row, strict=True)) for row in rows]


def test_triage_keeps_some_lines_and_not_all_in_order() -> None:
    for number in range(50):
        draft = triage(Draw("eval", str(number)))
        ((_, text),) = draft.files.items()
        mark = draft.answer.split(" ")[0]
        assert f" {mark}" in draft.instruction
        assert draft.answer.split("\n") == [line for line in text.split("\n") if line.startswith(mark)]
        assert draft.answer != text


def test_follow_answers_from_the_named_file_and_not_from_its_twin() -> None:
    for number in range(50):
        draft = follow(Draw("train", str(number)))
        (_, index), (name, text) = draft.files.items()
        ((other, twin),) = draft.aside.items()
        assert name in index
        assert other in index
        key = next(line.split(" = ")[0] for line in text.split("\n") if line.endswith(f" = {draft.answer}"))
        assert f" {key} " in draft.instruction
        assert f"{key} = " in twin
        assert draft.answer not in twin.split()
