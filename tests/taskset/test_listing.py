from collections.abc import Sequence
from pathlib import Path

import pytest

from clawexp.component import component
from clawexp.errors import TasksetError
from clawexp.protocols import Listed
from clawexp.records import Sandbox, Split, Task, Verdict
from clawexp.taskset.listing import Entry, ListedTaskset, Problem, fraction, listed


class NoGrader:
    async def grade(self, sandbox: Sandbox) -> Verdict:
        raise AssertionError


def entry(name: str, split: Split | None = None) -> Entry:
    def make(side: Split) -> Task:
        return Task(id=name, instruction="", files={}, grader=NoGrader(), split=side)

    return Entry(id=name, where=f"place of {name}", split=split, make=make)


MANY = [entry(f"task-{number}") for number in range(200)]


@component
class Lines(ListedTaskset):
    """A task a line, for these tests."""

    path: str
    eval_share: float

    def entries(self, source: Path) -> Sequence[Entry | Problem]:
        found = enumerate(source.read_text().split("\n"), start=1)
        return [entry(line) if line != "bad" else Problem(f"line {n}", "is bad") for n, line in found]


def test_every_task_comes_once_before_any_comes_again() -> None:
    listing = listed("x", MANY[:10], 0)
    drawn = [[task.id for task in listing.train(step, 3, seed=1)] for step in range(10)]
    names = [name for step in drawn for name in step]
    turns = [names[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(turn) == sorted(entry.id for entry in MANY[:10]) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == 3, "the order is another each time"
    assert drawn == [[task.id for task in listing.train(step, 3, seed=1)] for step in range(10)]
    assert drawn != [[task.id for task in listing.train(step, 3, seed=2)] for step in range(10)]


def test_a_step_with_more_tasks_than_there_are_names_each_of_them_apart() -> None:
    names = [task.id for task in listed("x", MANY[:2], 0).train(0, 5, seed=0)]
    assert len(set(names)) == 5
    assert {name.partition("-x")[0] for name in names} == {"task-0", "task-1"}


def test_a_task_stays_on_its_side_when_others_come() -> None:
    few, many = (listed("x", entries, 0.3) for entries in (MANY[:100], MANY))
    held_out = {entry.id for entry in many.held_out}
    assert {entry.id for entry in few.held_out} == held_out & {entry.id for entry in MANY[:100]}
    assert 0.2 < len(held_out) / len(MANY) < 0.4
    assert [entry.id for entry in many.held_out] == sorted(held_out, key=fraction)
    assert {task.split for task in many.evaluation(9)} == {"eval"}
    assert {task.split for task in many.train(0, 9, 0)} == {"train"}


def test_a_declared_side_counts_more_than_the_hash() -> None:
    sides: list[Split | None] = ["train", "eval", "eval"]
    found = listed("x", [entry(name, split) for name, split in zip("abc", sides, strict=True)], 0.5)
    assert [each.id for each in found.training] == ["a"]
    assert {each.id for each in found.held_out} == {"b", "c"}
    with pytest.raises(TasksetError, match="all of its tasks are held out"):
        listed("x", [entry("a", "eval")], 0.5)


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_where_there_are_two_tasks_there_are_two_sides(share: float) -> None:
    found = listed("x", MANY[:2], share)
    assert (len(found.training), len(found.held_out)) == (1, 1)
    assert len(listed("x", MANY[:1], share).training) == 1
    assert listed("x", MANY, 0).held_out == ()


def test_everything_that_is_wrong_is_listed_at_once_and_nothing_is_loaded() -> None:
    wrong = [entry("a"), Problem("file:3", "is bad"), entry("a/b"), entry("c-x2"), entry("a")]
    wrong[-1] = Entry(id="a", where="elsewhere", split=None, make=entry("a").make)
    with pytest.raises(TasksetError) as error:
        listed("the/path", wrong, 0.5)
    text = str(error.value)
    assert "taskset.path=the/path: 4 of its tasks cannot be used" in text
    for part in ("file:3: is bad", "place of a/b: the id", "place of c-x2: the id", "taken by place of a"):
        assert part in text
    with pytest.raises(TasksetError, match="holds no task"):
        listed("x", [], 0.5)


def test_a_taskset_refuses_its_source_as_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("a\nb")
    (tmp_path / "wrong").write_text("a\nbad\nbad")
    made = Lines(path=str(tmp_path / "good"), eval_share=0.5)
    assert isinstance(made, Listed)
    assert sorted(place.id for place in made.places()) == ["a", "b"]
    with pytest.raises(ValueError, match=r"(?s)line 2: is bad.*line 3: is bad"):
        Lines(path=str(tmp_path / "wrong"), eval_share=0.5)
    with pytest.raises(ValueError, match=r"cannot be read.*No such file"):
        Lines(path=str(tmp_path / "none"), eval_share=0.5)
    assert list(tmp_path.iterdir()), "reading changes nothing"
