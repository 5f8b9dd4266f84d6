from clawexp.taskset.draw import Draw
from clawexp.taskset.families.level3 import count, join, markdown, total


def rows(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.split("\n")]


def test_count_and_total_agree_with_their_files() -> None:
    for number in range(50):
        draft = count(Draw("eval", str(number)))
        ((_, text),) = draft.files.items()
        asked = [cell for _, cell in rows(text)[1:] if f" {cell} " in draft.instruction]
        assert draft.answer == str(len(asked))
        draft = total(Draw("eval", str(number)))
        ((_, text),) = draft.files.items()
        assert draft.answer == str(sum(int(cell) for _, cell in rows(text)[1:]))


def test_join_looks_every_row_up() -> None:
    draft = join(Draw("train", "3"))
    left, right = (rows(text) for text in draft.files.values())
    found = dict(right)
    assert rows(draft.answer) == [[*row, found[row[1]]] for row in left]


def test_markdown_has_a_header_a_rule_and_the_rows() -> None:
    draft = markdown(Draw("train", "3"))
    ((_, text),) = draft.files.items()
    lines = draft.answer.split("\n")
    assert set(lines.pop(1)) == set("| -")
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == rows(text)
