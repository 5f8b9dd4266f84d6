"""One short file, one short answer: what a very small model can begin to solve."""

from collections.abc import Mapping

from clawexp.taskset.draft import Draft, Family
from clawexp.taskset.draw import Draw

LOOKUP = (
    "Write the value of {key} in {file} to {out}.",
    "Put the value of {key} from {file} into {out}.",
    "Find {key} in {file} and write its value to {out}.",
    "Read {file}. Save the value of {key} in {out}.",
)
COPY = (
    "Copy {file} to {out}.",
    "Make a copy of {file} called {out}.",
    "Write the content of {file} to {out}.",
    "Save {file} as {out}.",
)
PICK = (
    "Write the {column} of {person} from {file} to {out}.",
    "Find the {column} of {person} in {file} and write it to {out}.",
    "Put the {column} of {person} in {file} into {out}.",
    "Read {file}. Save the {column} of {person} in {out}.",
)
CONFIG = (
    "Set {key} to {value} in {file}.",
    "In {file}, set {key} to {value}.",
    "Change {key} to {value} in {file}.",
    "In {file}, change {key} to {value} and keep the rest.",
)
MAKE = (
    "Create {out} with {word} in it.",
    "Write {word} to {out}.",
    "Make a file {out} that says {word}.",
    "Save {word} as {out}.",
)


def lookup(draw: Draw) -> Draft:
    """The value of a key."""
    settings = _settings(draw)
    key = draw.rng.choice(list(settings))
    file, out = draw.file("conf"), draw.file("txt")
    return Draft(
        instruction=draw.phrase(LOOKUP, key=key, file=file, out=out),
        files={file: lines(settings)},
        path=out,
        answer=settings[key],
        shape="value",
    )


def copy(draw: Draw) -> Draft:
    """The same line in another file."""
    text = " ".join(draw.words("thing", draw.rng.randint(2, 4)))
    file, out = draw.file("txt"), draw.file("txt")
    return Draft(
        instruction=draw.phrase(COPY, file=file, out=out),
        files={file: text},
        path=out,
        answer=text,
        shape="value",
    )


def pick(draw: Draw) -> Draft:
    """One cell of a table."""
    people = {person: draw.value() for person in draw.words("person", draw.rng.randint(2, 3))}
    first, column = draw.words("column", 2)
    person = draw.rng.choice(list(people))
    file, out = draw.file("csv"), draw.file("txt")
    rows = [f"{first},{column}", *(f"{name},{cell}" for name, cell in people.items())]
    return Draft(
        instruction=draw.phrase(PICK, column=column, person=person, file=file, out=out),
        files={file: "\n".join(rows)},
        path=out,
        answer=people[person],
        shape="value",
    )


def config(draw: Draw) -> Draft:
    """A new value for a key, all other lines kept."""
    settings = _settings(draw)
    key, value, file = draw.rng.choice(list(settings)), draw.value(), draw.file("conf")
    return Draft(
        instruction=draw.phrase(CONFIG, key=key, value=value, file=file),
        files={file: lines(settings)},
        path=file,
        answer=lines(settings | {key: value}),
        shape="lines",
    )


def make(draw: Draw) -> Draft:
    """A new file with a given word: one tool call, and nothing to read."""
    out, word = draw.file("txt"), draw.word("thing")
    return Draft(
        instruction=draw.phrase(MAKE, out=out, word=word),
        files={},
        path=out,
        answer=word,
        shape="value",
    )


def lines(settings: Mapping[str, str]) -> str:
    return "\n".join(f"{key} = {value}" for key, value in settings.items())


def _settings(draw: Draw) -> dict[str, str]:
    return {key: draw.value() for key in draw.words("key", draw.rng.randint(2, 4))}


FAMILIES: dict[str, Family] = {"lookup": lookup, "copy": copy, "pick": pick, "config": config, "make": make}
