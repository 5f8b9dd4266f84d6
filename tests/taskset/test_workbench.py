"""The generator as a whole: what it promises of every family."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from clawexp.protocols import Taskset
from clawexp.records import Task
from clawexp.taskset.distractors import distractors
from clawexp.taskset.workbench import Workbench

LEVELS = {
    1: ("lookup", "copy", "pick", "config"),
    2: ("csv_json", "triage", "follow"),
    3: ("count", "total", "join", "markdown"),
    4: ("hunt", "tally", "collect"),
}
FAMILIES = [(level, family) for level, families in LEVELS.items() for family in families]
PUBLISHED = (
    "Write the value of alias in help.conf to menu.txt.",
    {"help.conf": b"worker = 747\nuser = 44\nalias = planet\nsuffix = kettle"},
)
TOKEN = re.compile(r"[A-Za-z0-9]+")


def workbench(level: int, *families: str, long_tokens: int = 200) -> Workbench:
    return Workbench(level=level, families=families, long_tokens=long_tokens)


def content(task: Task) -> Iterator[str]:
    """Every word and number of the files, the answers and the file names without their endings."""
    (_, wanted) = task.oracle[-1]
    texts = [wanted["content"], *(data.decode() for data in task.files.values())]
    names = {wanted["path"], *task.files}
    for text in texts:
        for name in names:
            text = text.replace(name, "")
        yield from TOKEN.findall(text.lower())
    yield from (name.split(".")[0] for name in names)


def both_splits(level: int, family: str) -> list[Task]:
    tasks = workbench(level, family)
    return [*tasks.train(0, 150, seed=7), *tasks.evaluation(50)]


@pytest.mark.parametrize(("level", "family"), FAMILIES)
async def test_the_oracle_scores_one_and_doing_nothing_scores_zero(level: int, family: str, bench: Any) -> None:
    for task in both_splits(level, family):
        verdict = await bench.play(task, task.oracle)
        assert verdict.score == 1.0, (task, verdict)
        assert set(verdict.checks.values()) == {1.0}
        idle = await bench.play(task, ())
        assert idle.score == 0.0
        assert idle.reason


@pytest.mark.parametrize(("level", "family"), FAMILIES)
async def test_every_distractor_scores_less_than_the_oracle(level: int, family: str, bench: Any) -> None:
    for task in both_splits(level, family):
        for calls in distractors(task):
            verdict = await bench.play(task, calls)
            assert verdict.score < 1.0, (task, calls)
            assert verdict.reason


@pytest.mark.parametrize(("level", "family"), FAMILIES)
async def test_the_oracle_scores_one_in_a_real_folder(level: int, family: str, bench: Any, tmp_path: Path) -> None:
    for task in workbench(level, family).train(0, 10, seed=0):
        verdict = await bench.play(task, task.oracle, bench.folder(tmp_path / task.id))
        assert verdict.score == 1.0, (task, verdict)


@pytest.mark.parametrize(("level", "family"), FAMILIES)
async def test_changing_an_input_scores_zero_whatever_the_answer(level: int, family: str, bench: Any) -> None:
    for task in workbench(level, family).train(0, 10, seed=0):
        inputs = [path for path in task.files if path != task.oracle[-1][1]["path"]]
        for path in inputs:
            spoilt = ("write", {"path": path, "content": task.files[path].decode() + " "})
            verdict = await bench.play(task, (*task.oracle, spoilt))
            assert verdict.score == 0.0
            assert path in verdict.reason


def test_training_and_held_out_tasks_share_no_name_no_token_and_no_answer() -> None:
    seen: dict[str, set[str]] = {"train": set(), "eval": set()}
    for level in LEVELS:
        tasks = workbench(level)
        for task in [*tasks.train(3, 800, seed=1), *tasks.evaluation(800)]:
            seen[task.split] |= set(content(task))
    # Header rules of markdown and marks of JSON hold no word, so nothing at all is common.
    assert seen["train"] & seen["eval"] == set()
    assert min(len(tokens) for tokens in seen.values()) > 500


def test_level_one_is_short() -> None:
    for task in workbench(1).train(0, 1000, seed=0):
        text = " ".join([task.instruction, *(data.decode() for data in task.files.values())])
        assert len(re.findall(r"\w+|[^\w\s]", text)) <= 40, text
        assert all(1 <= data.count(b"\n") + 1 <= 4 for data in task.files.values())


def test_what_train_gives_depends_on_its_arguments_alone() -> None:
    ours, theirs = workbench(1), workbench(1)
    theirs.train(9, 5, seed=4)
    assert ours.train(2, 8, seed=3) == theirs.train(2, 8, seed=3)
    assert ours.train(2, 8, seed=3) != ours.train(2, 8, seed=4)
    assert ours.train(2, 8, seed=3) != ours.train(3, 8, seed=3)
    assert ours.train(2, 8, seed=3)[:5] != ours.evaluation(5)


def test_a_larger_evaluation_begins_with_the_smaller_one() -> None:
    assert workbench(2).evaluation(50)[:10] == workbench(2).evaluation(10)


def test_a_task_once_published_stays_as_it_is() -> None:
    task = workbench(1).evaluation(1)[0]
    assert task.id == "lookup-eval-0"
    assert (task.instruction, task.files) == PUBLISHED


def test_task_ids_are_unique_over_steps_and_families_take_turns() -> None:
    tasks = [task for step in range(20) for task in workbench(1).train(step, 3, seed=0)]
    assert len({task.id for task in tasks}) == 60
    assert [task.tags[1] for task in tasks[:5]] == ["lookup", "copy", "pick", "config", "make"]


def test_a_chosen_family_of_a_lower_level_joins_in() -> None:
    tags = [task.tags for task in workbench(2, "lookup", "triage").evaluation(2)]
    assert tags == [("level1", "lookup"), ("level2", "triage")]


def test_a_family_above_the_level_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValidationError, match=r"level 1 has no family triage; choose from config, copy"):
        workbench(1, "triage")


@pytest.mark.parametrize("long_tokens", [300, 2000, 8000])
def test_long_tasks_are_about_as_long_as_asked(long_tokens: int) -> None:
    for task in workbench(4, long_tokens=long_tokens).train(0, 6, seed=0):
        text = " ".join(data.decode() for data in task.files.values())
        tokens = len(re.findall(r"\w+|[^\w\s]|\n", text))
        assert 0.8 * long_tokens <= tokens <= 1.3 * long_tokens + 100


def test_an_instruction_names_the_first_file_to_read_and_the_file_to_write() -> None:
    for task in workbench(3).train(0, 200, seed=0):
        assert task.oracle[-1][1]["path"] in task.instruction
        assert task.oracle[0][1]["path"] in task.instruction


def test_the_option_file_makes_a_taskset() -> None:
    option = OmegaConf.to_container(OmegaConf.load(Path("conf/taskset/workbench.yaml")))
    assert isinstance(option, dict)
    assert option.pop("_target_") == "clawexp.taskset.workbench.Workbench"
    assert isinstance(Workbench(**{str(key): value for key, value in option.items()}), Taskset)
