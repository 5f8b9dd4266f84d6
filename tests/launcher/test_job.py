import dataclasses
import os
from pathlib import Path

from clawexp.launcher.job import Job, note, noted, noting_folders


def job(folder: Path, number: str = "12_0") -> Job:
    return Job(
        launcher="slurm",
        id=number,
        folder=str(folder / "0"),
        log=str(folder / "slurm" / "0.out"),
        overrides=("algo.lr=1e-4", "model.name='a \"b\"'"),
    )


def test_jobs_are_read_as_they_were_noted_and_more_are_appended(tmp_path: Path) -> None:
    first, second = job(tmp_path), job(tmp_path, "13")
    note([first], tmp_path)
    note([second], tmp_path)
    assert list(noted(tmp_path)) == [first, second]
    assert first.noted_in == tmp_path


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    note([job(tmp_path)], tmp_path)
    with (tmp_path / "jobs.jsonl").open("a") as file:
        file.write('{"launcher": "sl')
    assert list(noted(tmp_path)) == [job(tmp_path)]
    assert list(noted(tmp_path / "nowhere")) == []


def test_folders_that_note_jobs_are_found_the_newest_first(tmp_path: Path) -> None:
    for name, noted_at in {"a": 2, "b/c": 1}.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        note([job(folder)], folder)
        os.utime(folder / "jobs.jsonl", (noted_at, noted_at))
    assert noting_folders(tmp_path) == [tmp_path / "a", tmp_path / "b" / "c"]


def test_the_last_words_are_our_own_message_or_the_end_of_the_log(tmp_path: Path) -> None:
    noting = job(tmp_path)
    assert noting.last_words() == ""
    Path(noting.log).parent.mkdir()
    Path(noting.log).write_text("".join(f"line {number}\n" for number in range(9)))
    assert noting.last_words() == "\n".join(f"line {number}" for number in range(4, 9))
    Path(noting.log).write_text("clawexp: first\nclawexp: no such model\nand more\n")
    assert noting.last_words() == "no such model"


def test_a_message_names_a_job_and_its_point(tmp_path: Path) -> None:
    alone = dataclasses.replace(job(tmp_path), id="7", overrides=())
    assert alone.name == "job 7"
    assert dataclasses.replace(alone, overrides=("a=1", "b=2")).name == "job 7 (a=1 b=2)"
    assert (alone.reached, alone.finished) == ("", False)
