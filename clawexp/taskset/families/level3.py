"""An answer that stands in no file: counts, sums, joins, tables."""

from collections.abc import Sequence

from clawexp.taskset.draft import Draft, Family
from clawexp.taskset.draw import Draw

COUNT = (
    "Count the rows of {file} whose {column} is {cell} and write the number to {out}.",
    "How many rows of {file} have {cell} as {column}? Write the number to {out}.",
    "Write to {out} how often {column} is {cell} in {file}.",
)
SUM = (
    "Add up the {column} column of {file} and write the sum to {out}.",
    "Write the total of {column} in {file} to {out}.",
    "Sum {column} over all rows of {file}; save the result in {out}.",
)
JOIN = (
    "Join {left} and {right} on {column}: write the rows of {left}, with {more} added, to {out} as CSV.",
    "Add to every row of {left} its {more} from {right}, matched by {column}, and write the CSV to {out}.",
    "Write {left} to {out} as CSV with one more column, {more}, looked up by {column} in {right}.",
)
TABLE = (
    "Write {file} as a markdown table to {out}.",
    "Convert {file} to a markdown table and save it in {out}.",
    "Turn the rows of {file} into a markdown table with a header, in {out}.",
)


def count(draw: Draw) -> Draft:
    """How many rows hold a cell."""
    first, column = draw.words("column", 2)
    cell, other = draw.words("thing", 2)
    times = draw.rng.choice([number for number in range(1, 7) if draw.owns(str(number))])
    cells = [cell] * times + [other] * draw.rng.randint(2, 3)
    draw.rng.shuffle(cells)
    file, out = draw.file("csv"), draw.file("txt")
    return Draft(
        instruction=draw.phrase(COUNT, file=file, column=column, cell=cell, out=out),
        files={file: table([[first, column], *([draw.word("person"), found] for found in cells)])},
        path=out,
        answer=str(times),
        shape="value",
    )


def total(draw: Draw) -> Draft:
    """The sum of a column."""
    first, column = draw.words("column", 2)
    numbers = draw.addends(digits=2, count=draw.rng.randint(3, 5))
    file, out = draw.file("csv"), draw.file("txt")
    return Draft(
        instruction=draw.phrase(SUM, column=column, file=file, out=out),
        files={file: table([[first, column], *([draw.word("person"), number] for number in numbers)])},
        path=out,
        answer=str(sum(map(int, numbers))),
        shape="value",
    )


def join(draw: Draw) -> Draft:
    """Two tables that share a column, the second in another order."""
    who, column, more = draw.words("column", 3)
    pairs = [(draw.word("person"), draw.word("thing"), draw.value()) for _ in range(draw.rng.randint(3, 4))]
    left, right, out = draw.file("csv"), draw.file("csv"), draw.file("csv")
    shuffled = draw.rng.sample(pairs, len(pairs))
    return Draft(
        instruction=draw.phrase(JOIN, left=left, right=right, column=column, more=more, out=out),
        files={
            left: table([[who, column], *([person, thing] for person, thing, _ in pairs)]),
            right: table([[column, more], *([thing, value] for _, thing, value in shuffled)]),
        },
        path=out,
        answer=table([[who, column, more], *pairs]),
        shape="csv",
    )


def markdown(draw: Draw) -> Draft:
    """A CSV as a markdown table."""
    columns = draw.words("column", draw.rng.randint(2, 3))
    rows = [[draw.word("person"), *(draw.value() for _ in columns[1:])] for _ in range(draw.rng.randint(2, 4))]
    file, out = draw.file("csv"), draw.file("md")
    header, *body = [f"| {' | '.join(row)} |" for row in [columns, *rows]]
    return Draft(
        instruction=draw.phrase(TABLE, file=file, out=out),
        files={file: table([columns, *rows])},
        path=out,
        answer="\n".join([header, f"|{' --- |' * len(columns)}", *body]),
        shape="markdown",
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """`table([["a", "b"], ["1", "2"]])` is `a,b` above `1,2`."""
    return "\n".join(",".join(row) for row in rows)


FAMILIES: dict[str, Family] = {"count": count, "total": total, "join": join, "markdown": markdown}
