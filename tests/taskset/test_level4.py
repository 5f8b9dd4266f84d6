import pytest

from clawexp.taskset.draw import Draw
from clawexp.taskset.families.level4 import MAX_FILES, families


@pytest.mark.parametrize("long_tokens", [10, 1000, 50_000])
@pytest.mark.parametrize("name", ["hunt", "tally", "collect"])
def test_the_first_file_lists_all_others(name: str, long_tokens: int) -> None:
    draft = families(long_tokens)[name](Draw("eval", "0"))
    (_, index), *others = draft.files.items()
    assert index.split("\n") == [*(path for path, _ in others), *draft.aside]
    assert 3 <= len(index.split("\n")) <= MAX_FILES


def test_hunt_hides_the_key_in_one_file_behind_others() -> None:
    for number in range(20):
        draft = families(1000)["hunt"](Draw("train", str(number)))
        texts = list(draft.files.values())
        (line,) = [line for line in texts[-1].split("\n") if line.endswith(f" = {draft.answer}")][:1]
        key = line.split(" = ")[0]
        assert not any(f"{key} = " in f"\n{text}" for text in [*texts[1:-1], *draft.aside.values()])
        assert len(texts) > 3


def test_tally_adds_one_number_per_file() -> None:
    draft = families(1000)["tally"](Draw("train", "0"))
    numbers = [
        int(line.split(" = ")[1]) for text in draft.files.values() for line in text.split("\n") if line[-1].isdigit()
    ]
    assert len(numbers) == len(draft.files) - 1
    assert draft.answer == str(sum(numbers))


def test_collect_takes_one_line_from_every_file() -> None:
    draft = families(1000)["collect"](Draw("train", "0"))
    lines = draft.answer.split("\n")
    assert len(lines) == len(draft.files) - 1
    for line, text in zip(lines, list(draft.files.values())[1:], strict=True):
        assert text.split("\n").count(line) == 1
