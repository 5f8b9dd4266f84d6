"""A small transformation, or one file that names the next."""

import json

from clawexp.taskset.draft import Draft, Family
from clawexp.taskset.draw import Draw
from clawexp.taskset.families.level1 import lines

JSON = (
    "Convert {file} to a JSON list of objects in {out}, all values as strings.",
    "Write the rows of {file} to {out} as a JSON list of objects with string values.",
    "Read {file} and save its rows in {out} as a JSON list, one object with string values per row.",
)
TRIAGE = (
    "Copy the {mark} lines of {file} to {out}.",
    "Write only the lines of {file} that begin with {mark} to {out}.",
    "Find all {mark} lines in {file} and save them in {out}, in the same order.",
    "Keep the {mark} lines of {file} and write them to {out}.",
)
FOLLOW = (
    "The value of {pointer} in {file} is the file to read next. Write the value of {key} in it to {out}.",
    "Read {file}: {pointer} names another file. Write its value of {key} to {out}.",
    "Find the file that {pointer} names in {file}, and save the value of {key} from there in {out}.",
)


def csv_json(draw: Draw) -> Draft:
    """Rows of a CSV as JSON objects."""
    columns = draw.words("column", draw.rng.randint(2, 3))
    rows = [[draw.word("person"), *draw.words("thing", len(columns) - 1)] for _ in range(draw.rng.randint(2, 3))]
    file, out = draw.file("csv"), draw.file("json")
    return Draft(
        instruction=draw.phrase(JSON, file=file, out=out),
        files={file: "\n".join(",".join(row) for row in [columns, *rows])},
        path=out,
        answer=json.dumps([dict(zip(columns, row, strict=True)) for row in rows]),
        shape="json",
    )


def triage(draw: Draw) -> Draft:
    """The lines of a log that carry one mark."""
    mark, *others = draw.words("mark", 3)
    marks = [mark] * draw.rng.randint(2, 3) + draw.rng.choices(others, k=draw.rng.randint(2, 3))
    draw.rng.shuffle(marks)
    log = [f"{found} {draw.word('thing')} {draw.word('key')}" for found in marks]
    file, out = draw.file("log"), draw.file("txt")
    return Draft(
        instruction=draw.phrase(TRIAGE, mark=mark, file=file, out=out),
        files={file: "\n".join(log)},
        path=out,
        answer="\n".join(line for found, line in zip(marks, log, strict=True) if found == mark),
        shape="lines",
    )


def follow(draw: Draw) -> Draft:
    """A key in one file names the file that holds the answer; another file holds the same keys."""
    pointers, keys = draw.words("key", 2), draw.words("key", 2)
    named = {pointer: draw.file("conf") for pointer in pointers}
    settings = {pointer: {key: draw.value() for key in keys} for pointer in pointers}
    pointer, key = draw.rng.choice(pointers), draw.rng.choice(keys)
    file, out = draw.file("conf"), draw.file("txt")
    other = next(each for each in pointers if each != pointer)
    return Draft(
        instruction=draw.phrase(FOLLOW, pointer=pointer, file=file, key=key, out=out),
        files={file: lines(named), named[pointer]: lines(settings[pointer])},
        aside={named[other]: lines(settings[other])},
        path=out,
        answer=settings[pointer][key],
        shape="value",
    )


FAMILIES: dict[str, Family] = {"csv_json": csv_json, "triage": triage, "follow": follow}
