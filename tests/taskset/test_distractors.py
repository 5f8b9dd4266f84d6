from clawexp.taskset.distractors import distractors
from clawexp.taskset.workbench import Workbench


def lookup_task(number: int = 0):
    return Workbench(level=1, families=("lookup",), long_tokens=1).train(0, number + 1, seed=0)[number]


def test_distractors_depend_on_the_task_alone() -> None:
    assert distractors(lookup_task()) == distractors(lookup_task())


def test_every_call_of_the_oracle_is_wrong_in_some_distractor() -> None:
    task = Workbench(level=2, families=("follow",), long_tokens=1).train(0, 1, seed=0)[0]
    found = distractors(task)
    assert len(set(map(repr, found))) == len(found)
    for position, call in enumerate(task.oracle):
        assert any(calls[position] != call for calls in found)
    assert all(len(calls) == len(task.oracle) for calls in found)


def test_the_values_of_the_other_keys_are_among_the_wrong_answers() -> None:
    for number in range(20):
        task = lookup_task(number)
        (path,) = task.files
        values = {line.split(" = ")[1] for line in task.files[path].decode().split("\n")}
        right = task.oracle[-1][1]["content"]
        contents = {calls[-1][1]["content"] for calls in distractors(task)}
        assert values - {right} <= contents
        assert right[:-1] in contents
