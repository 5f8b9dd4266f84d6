"""Many files to read before one answer, long enough in total that a small context must be compacted."""

from functools import partial

from clawexp.taskset.draft import Draft, Family
from clawexp.taskset.draw import Draw

HUNT = (
    "{index} lists files. One of them has a line for {key}. Write its value to {out}.",
    "Find the value of {key} in one of the files that {index} lists, and write it to {out}.",
    "Read the files listed in {index} until you find {key}; save its value in {out}.",
)
TALLY = (
    "Every file that {index} lists has a line for {key}. Add up its values and write the sum to {out}.",
    "Sum the value of {key} over all files listed in {index}; write the result to {out}.",
    "Read each file that {index} lists and write the total of their {key} values to {out}.",
)
COLLECT = (
    "Each file that {index} lists has one line beginning with {key}. Copy them to {out} in that order.",
    "From each file listed in {index} take the {key} line, and write them to {out} in that order.",
    "Write the {key} lines of all files that {index} lists to {out}, in the order listed.",
)

FILE_LINES = 40
LINE_TOKENS = 4
"""A key, a sign, a value and a line end: a tokenizer of real size makes 4 to 6 tokens of them."""
MIN_FILES = 3
MAX_FILES = 40


def hunt(draw: Draw, long_tokens: int) -> Draft:
    """One file holds the key; it is never the first, so that some reading comes before."""
    key, value, index, out = draw.word("key"), draw.value(), draw.file("txt"), draw.file("txt")
    names = _names(draw, long_tokens)
    found = draw.rng.randrange(len(names) // 2, len(names))
    files = {
        name: _bulk(draw, long_tokens, len(names), f"{key} = {value}" if number == found else None)
        for number, name in enumerate(names)
    }
    return Draft(
        instruction=draw.phrase(HUNT, index=index, key=key, out=out),
        files={index: "\n".join(names), **{name: files[name] for name in names[: found + 1]}},
        aside={name: files[name] for name in names[found + 1 :]},
        path=out,
        answer=value,
        shape="value",
    )


def tally(draw: Draw, long_tokens: int) -> Draft:
    """A sum over all files."""
    key, index, out = draw.word("key"), draw.file("txt"), draw.file("txt")
    names = _names(draw, long_tokens)
    numbers = draw.addends(digits=3, count=len(names))
    bulk = [_bulk(draw, long_tokens, len(names), f"{key} = {number}") for number in numbers]
    return Draft(
        instruction=draw.phrase(TALLY, index=index, key=key, out=out),
        files={index: "\n".join(names), **dict(zip(names, bulk, strict=True))},
        path=out,
        answer=str(sum(map(int, numbers))),
        shape="value",
    )


def collect(draw: Draw, long_tokens: int) -> Draft:
    """One line out of every file."""
    mark, index, out = draw.word("mark"), draw.file("txt"), draw.file("txt")
    names = _names(draw, long_tokens)
    marked = [f"{mark} {draw.word('thing')} {draw.word('person')}" for _ in names]
    bulk = [_bulk(draw, long_tokens, len(names), line) for line in marked]
    return Draft(
        instruction=draw.phrase(COLLECT, index=index, key=mark, out=out),
        files={index: "\n".join(names), **dict(zip(names, bulk, strict=True))},
        path=out,
        answer="\n".join(marked),
        shape="lines",
    )


def _names(draw: Draw, long_tokens: int) -> list[str]:
    """File names, so many that each file has about FILE_LINES lines."""
    count = round(long_tokens / (FILE_LINES * LINE_TOKENS))
    return [draw.file("conf") for _ in range(min(max(count, MIN_FILES), MAX_FILES))]


def _bulk(draw: Draw, long_tokens: int, files: int, line: str | None) -> str:
    """Settings that do not matter, with one line that does somewhere among them."""
    count = max(2, long_tokens // (files * LINE_TOKENS))
    bulk = [f"{draw.filler('key')} = {draw.filler('thing')}" for _ in range(count)]
    if line is not None:
        bulk[draw.rng.randrange(count)] = line
    return "\n".join(bulk)


def families(long_tokens: int) -> dict[str, Family]:
    """The families, with files of about so many tokens in total."""
    return {
        "hunt": partial(hunt, long_tokens=long_tokens),
        "tally": partial(tally, long_tokens=long_tokens),
        "collect": partial(collect, long_tokens=long_tokens),
    }
