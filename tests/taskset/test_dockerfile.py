from pathlib import Path

import pytest

from clawexp.taskset.dockerfile import Recipe, read_dockerfile


def recipe(folder: Path, text: str, *files: str) -> Recipe:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "Dockerfile").write_text(text)
    return read_dockerfile(folder / "Dockerfile")


def laid(found: Recipe, folder: Path) -> dict[str, str]:
    return {target: source.relative_to(folder).as_posix() for target, source in found.files.items()}


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        ("COPY a.txt .", {"a.txt": "a.txt"}),
        ("COPY a.txt b.txt", {"b.txt": "a.txt"}),
        ("copy a.txt in/", {"in/a.txt": "a.txt"}),
        ("COPY data .", {"x.csv": "data/x.csv", "deep/y.csv": "data/deep/y.csv"}),
        ("COPY data /app/data/", {"data/x.csv": "data/x.csv", "data/deep/y.csv": "data/deep/y.csv"}),
        ('COPY ["a.txt", "/app/c.txt"]', {"c.txt": "a.txt"}),
        ("COPY a.txt data/x.csv \\\n  ./in/", {"in/a.txt": "a.txt", "in/x.csv": "data/x.csv"}),
        ("COPY *.txt ./", {"a.txt": "a.txt"}),
        ("WORKDIR sub\nCOPY a.txt ./", {"a.txt": "a.txt"}),
    ],
)
def test_copies_into_the_working_folder_are_laid_there(tmp_path: Path, copy: str, expected: dict[str, str]) -> None:
    found = recipe(tmp_path, f"# why\nFROM debian\n\nWORKDIR /app\n{copy}\n", "a.txt", "data/x.csv", "data/deep/y.csv")
    assert found.beyond == ()
    assert laid(found, tmp_path) == expected
    assert found.workdir == ("/app/sub" if "sub" in copy else "/app")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("RUN apt-get update", "line 3: RUN apt-get update"),
        ("RUN a \\\n && b", "line 3: RUN a && b"),
        ("ENV A=1", "line 3: ENV A=1"),
        ("FROM other", "line 3: FROM other"),
        ("COPY --chown=1 a.txt .", "line 3: COPY --chown=1 a.txt ."),
        ("COPY none.txt .", "line 3: COPY none.txt ."),
        ("COPY a.txt /etc/a.txt", "it copies /etc/a.txt, outside of its WORKDIR"),
        ("WORKDIR $HOME", "line 3: WORKDIR $HOME"),
    ],
)
def test_what_needs_the_image_is_named_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    assert recipe(tmp_path, f"FROM debian\nWORKDIR /app\n{line}\n", "a.txt").beyond == (said,)


def test_without_a_working_folder_or_with_files_left_out_it_takes_the_image(tmp_path: Path) -> None:
    assert recipe(tmp_path, "FROM debian\n").beyond == ("it has no WORKDIR",)
    assert recipe(tmp_path, "FROM debian\nWORKDIR /app\n", ".dockerignore").beyond == (".dockerignore beside it",)
