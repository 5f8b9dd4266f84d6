"""A Dockerfile -> what it amounts to for a sandbox that is made without building an image.

`FROM`, `WORKDIR` and `COPY` into the working folder say no more than which files lie where; every other line needs the
image itself.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from clawexp.runtime.containerfile import Line, lines

IGNORE = ".dockerignore"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """`Recipe(workdir="/app", files={"data/a.csv": Path("environment/a.csv")}, beyond=("line 3: RUN make",))`"""

    workdir: str | None
    """None where the Dockerfile names none."""
    files: dict[str, Path]
    """What is copied: path in the working folder -> file of the host."""
    beyond: tuple[str, ...]
    """Lines that need the image; empty where the sandbox can do without."""


def read_dockerfile(file: Path) -> Recipe:
    """Raises OSError."""
    folder, workdir = PurePosixPath("/"), None
    copied: list[tuple[PurePosixPath, Path]] = []
    told = list(lines(file.read_text()))
    beyond = [f"{IGNORE} beside it"] if (file.parent / IGNORE).exists() else []
    for line in told:
        if line.word == "WORKDIR" and "$" not in line.rest:
            folder = folder / line.rest.strip().strip('"')
            workdir = folder
        elif line.word == "COPY" and (found := _copied(line, folder, file.parent)) is not None:
            copied += found
        elif line.word != "FROM" or line is not told[0]:
            beyond.append(str(line))
    files = {target: source for target, source in copied if workdir and target.is_relative_to(workdir)}
    beyond += [f"it copies {target}, outside of its WORKDIR" for target, _ in copied if target not in files]
    return Recipe(
        workdir=str(workdir) if workdir else None,
        files={str(target.relative_to(workdir)): source for target, source in files.items() if workdir},
        beyond=tuple(beyond) if workdir else (*beyond, "it has no WORKDIR"),
    )


def _copied(line: Line, folder: PurePosixPath, context: Path) -> list[tuple[PurePosixPath, Path]] | None:
    """Target and source of every file that a COPY copies; None where it does more, or what it names is not there."""
    words = _words(line.rest)
    if len(words) < 2 or any(word.startswith("--") or "$" in word or "<<" in word for word in words):
        return None
    *patterns, last = words
    target = folder / last
    sources = [path for pattern in patterns for path in sorted(context.glob(pattern.lstrip("/") or "."))]
    into = last.endswith(("/", ".")) or len(sources) > 1
    if not sources:
        return None
    found: list[tuple[PurePosixPath, Path]] = []
    for source in sources:
        if source.is_dir():  # its content is copied, not the folder itself
            inside = [path for path in sorted(source.rglob("*")) if path.is_file()]
            found += [(target / path.relative_to(source).as_posix(), path) for path in inside]
        else:
            found.append((target / source.name if into else target, source))
    return found


def _words(rest: str) -> Sequence[str]:
    try:
        return json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError:
        return ()
