"""A Dockerfile as lines: what each says, on which line it begins, and which images it starts from."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FROM = re.compile(r"^(\s*FROM\s+(?:--\S+\s+)*)(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE | re.MULTILINE)
COPY_FROM = re.compile(r"^(\s*COPY\s+(?:--\S+\s+)*?--from=)(\S+)", re.IGNORECASE | re.MULTILINE)
STEP = re.compile(r"^(?:\[\d+/\d+\] )?STEP \d+/\d+: (.*)$", re.MULTILINE)
"""What a build prints before each instruction."""
EMPTY = "scratch"
"""No image, but a word for nothing."""


@dataclass(frozen=True)
class Line:
    """`Line(3, "RUN", "make && make install")`: one instruction, joined where it was continued."""

    number: int
    word: str
    rest: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.word} {self.rest}"


def lines(text: str) -> Iterator[Line]:
    """Instructions in order, each with the number of its first line."""
    held: list[str] = []
    first = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        first = first or number
        held.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            yield _line(first, held)
            held, first = [], 0
    if held:
        yield _line(first, held)


def _line(number: int, parts: list[str]) -> Line:
    word, _, rest = " ".join(parts).partition(" ")
    return Line(number, word.upper(), rest.strip())


def sources(text: str) -> list[str]:
    """The images that it starts from, each once; its own stages are none."""
    found, stages = [], {EMPTY}
    for _, image, stage in FROM.findall(text):
        if image.lower() not in stages and image not in found:
            found.append(image)
        stages.add(stage.lower())
    return found


def copied_from(text: str) -> list[str]:
    """The further images that it copies files from, each once."""
    stages = {stage.lower() for _, _, stage in FROM.findall(text)}
    images = (image for _, image in COPY_FROM.findall(text))
    return list(dict.fromkeys(image for image in images if not image.isdigit() and image.lower() not in stages))


def substituted(text: str, bases: Mapping[str, str], further: Mapping[str, str]) -> str:
    """The same Dockerfile, started from other images, and copying from others. Its lines keep their numbers."""
    text = FROM.sub(lambda match: match[0].replace(match[2], bases.get(match[2], match[2]), 1), text)
    return COPY_FROM.sub(lambda match: match[1] + further.get(match[2], match[2]), text)


def reached(text: str, printed: str) -> Line | None:
    """The instruction that a build was at when it ended, by what it printed; None where it had not begun."""
    steps = [" ".join(step.split()) for step in STEP.findall(printed)]
    same = [line for line in lines(text) if steps and " ".join(f"{line.word} {line.rest}".split()) == steps[-1]]
    # Of two that read alike, the one that was reached is told by how often it was announced.
    return same[min(steps.count(steps[-1]), len(same)) - 1] if same else None
