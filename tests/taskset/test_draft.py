from clawexp.taskset.draft import Draft

DRAFT = Draft(
    instruction="Copy a.txt to b.txt.",
    files={"a.txt": "x"},
    aside={"c.txt": "y"},
    path="b.txt",
    answer="x",
    shape="lines",
)


def test_the_oracle_reads_what_leads_to_the_answer_and_then_writes() -> None:
    task = DRAFT.task("copy-1", "train", ("copy",))
    assert task.oracle == (("read", {"path": "a.txt"}), ("write", {"path": "b.txt", "content": "x"}))
    assert task.files == {"a.txt": b"x", "c.txt": b"y"}


def test_the_file_to_change_is_no_input_that_must_survive() -> None:
    draft = Draft(instruction="", files={"a.txt": "x", "b.txt": "y"}, path="a.txt", answer="z", shape="lines")
    grader = draft.grader()
    assert grader.before == "x"
    assert set(grader.inputs) == {"b.txt"}
