from clawexp.taskset.draw import Draw
from clawexp.taskset.families.level1 import config, copy, lookup, pick


def test_lookup_asks_for_the_value_of_a_key_of_the_file() -> None:
    for number in range(50):
        draft = lookup(Draw("train", str(number)))
        ((_, text),) = draft.files.items()
        key = next(line.split(" = ")[0] for line in text.split("\n") if line.endswith(f" = {draft.answer}"))
        assert f" {key} " in draft.instruction


def test_copy_keeps_the_text() -> None:
    draft = copy(Draw("train", "0"))
    assert list(draft.files.values()) == [draft.answer]
    assert draft.path not in draft.files


def test_pick_asks_for_one_cell_and_every_person_occurs_once() -> None:
    for number in range(50):
        draft = pick(Draw("train", str(number)))
        ((_, text),) = draft.files.items()
        (_, column), *rows = [line.split(",") for line in text.split("\n")]
        person = next(name for name, cell in rows if cell == draft.answer)
        assert f"{column} of {person} " in draft.instruction
        assert len({name for name, _ in rows}) == len(rows)


def test_config_changes_one_line_and_keeps_the_others() -> None:
    for number in range(50):
        draft = config(Draw("train", str(number)))
        before, after = draft.files[draft.path].split("\n"), draft.answer.split("\n")
        ((old, new),) = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        key, value = new.split(" = ")
        assert old.startswith(f"{key} = ")
        assert f"{key} to {value}" in draft.instruction
