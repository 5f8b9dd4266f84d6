"""How recorded traffic of harnesses would be captured: a table of calls and forks."""

from collections.abc import Sequence
from pathlib import Path

from clawexp.capture.message import Refused
from clawexp.capture.recorded import Recorded, Replayer, causes
from clawexp.capture.rendering import open_rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError
from clawexp.model.checkpoint import checkpoint_folder

CHECKPOINT = "package:tiny"
"""Forks do not depend on the vocabulary."""
FIRST = ("root", "continue")


def run(argv: Sequence[str]) -> int:
    """`replay --requests FOLDER`. Raises ConfigError."""
    if len(argv) != 1:
        raise ConfigError("replay --requests takes the folder of recorded requests: replay --requests FOLDER")
    checkpoint = checkpoint_folder(CHECKPOINT)
    replayer = Replayer(rendering=open_rendering(checkpoint, "qwen3"), tokenizer=Tokenizer(checkpoint))
    try:
        found = list(replayer.folder(Path(argv[0])))
    except Refused as refused:
        raise ConfigError(f"a recorded request would be refused: {refused}") from refused
    if not found:
        raise ConfigError(f"{argv[0]}: no recorded requests there; name a folder of NAME.jsonl files")
    print("\n".join(_table(found)))
    return 0


def _table(recorded: Sequence[Recorded]) -> list[str]:
    """A line per harness, a column per cause that was found, in the order of their numbers."""
    counted = causes(recorded)
    total = sum(counted.values(), start=type(next(iter(counted.values())))())
    names = [*FIRST, *(cause for cause, _ in total.most_common() if cause not in FIRST)]
    lines = [["harness", "calls", *names]]
    for harness, found in [*counted.items(), ("all", total)]:
        lines.append([harness, str(found.total()), *(str(found[name]) for name in names)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(names) + 2)]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
