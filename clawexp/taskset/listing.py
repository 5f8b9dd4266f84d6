"""Tasks that lie in files: all looked at before anything starts, which of them are held out, in what order they come.

A file or folder that is no task is refused, together with all others: nothing is left out in silence. Only what a task
needs to be chosen is kept; its files are read when it is drawn.
"""

import functools
import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clawexp.errors import TasksetError
from clawexp.protocols import Placed
from clawexp.records import Image, Split, Task

SAMPLES = Path(__file__).parent / "samples"
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""It becomes part of file names."""
AGAIN = re.compile(r"-x\d+$")
"""How a task that comes twice in one step is called the second time."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One task that lies there. `Entry(id="task_0001", where="a/task_0001", split=None, make=...)`"""

    id: str
    where: str
    """Its file, and line where there are several in it."""
    split: Split | None
    """None where the task does not say."""
    make: Callable[[Split], Task]
    """Reads the rest. Raises OSError."""
    workspace: str | None = None
    folders: tuple[str, ...] = ()
    image: Image | None = None


@dataclass(frozen=True)
class Problem:
    """`Problem("tasks.jsonl:3", "no instruction; say what is to be done")`"""

    where: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Sound entries, each on one side."""

    training: tuple[Entry, ...]
    """In order of id."""
    held_out: tuple[Entry, ...]
    """In an order of chance that never changes."""

    def train(self, step: int, num_tasks: int, seed: int) -> list[Task]:
        """The next tasks of an endless shuffle: every task once, in a new order, before any comes again."""
        drawn: list[Task] = []
        times: dict[str, int] = defaultdict(int)
        orders: dict[int, list[Entry]] = {}
        for place in range(step * num_tasks, (step + 1) * num_tasks):
            turn, number = divmod(place, len(self.training))
            if turn not in orders:
                orders[turn] = random.Random(f"{seed}/{turn}").sample(self.training, len(self.training))
            task = _made(orders[turn][number], "train")
            times[task.id] += 1
            # Two groups of one step must not share their rollouts' names.
            drawn.append(task if times[task.id] == 1 else replace(task, id=f"{task.id}-x{times[task.id]}"))
        return drawn

    def evaluation(self, num_tasks: int) -> list[Task]:
        return [_made(entry, "eval") for entry in self.held_out[:num_tasks]]


def _made(entry: Entry, split: Split) -> Task:
    try:
        return entry.make(split)
    except OSError as error:
        raise TasksetError(f"task {entry.id} was there and cannot be read any more: {error}") from error


class ListedTaskset(ABC):
    """What the tasksets that lie in files have in common; each is a component with these two fields."""

    path: str
    eval_share: float

    @abstractmethod
    def entries(self, source: Path) -> Sequence[Entry | Problem]:
        """What lies at `source`, good and bad."""

    def __post_init__(self) -> None:
        """Refuse a source with anything wrong in it. Raises ValueError."""
        try:
            _ = self.listing
        except TasksetError as error:
            raise ValueError(str(error)) from error

    @functools.cached_property
    def listing(self) -> Listing:
        """Read once. Raises TasksetError that lists everything that is wrong."""
        source = source_path(self.path)
        try:
            found = self.entries(source)
        except OSError as error:
            raise TasksetError(f"taskset.path={self.path} cannot be read: {error}") from error
        return listed(self.path, found, self.eval_share)

    def train(self, step: int, num_tasks: int, seed: int) -> Sequence[Task]:
        return self.listing.train(step, num_tasks, seed)

    def evaluation(self, num_tasks: int) -> Sequence[Task]:
        return self.listing.evaluation(num_tasks)

    def places(self) -> Sequence[Placed]:
        return (*self.listing.training, *self.listing.held_out)


def source_path(path: str) -> Path:
    """`package:NAME` ships with clawexp; anything else is a path."""
    kind, _, name = path.partition(":")
    return SAMPLES / name if kind == "package" else Path(path).expanduser().absolute()


def task_folders(source: Path) -> list[Path]:
    """The folders of `source`, one a task, in order of name; hidden ones are none."""
    return sorted(each for each in source.iterdir() if each.is_dir() and not each.name.startswith("."))


def listed(source: str, found: Sequence[Entry | Problem], eval_share: float) -> Listing:
    """Refuse everything that is wrong at once, else share out what does not say where it belongs. Raises TasksetError.

    By a hash of the id: a task stays on its side when others come or go. Both sides get at least one where there are
    two, unless `eval_share` is 0.
    """
    entries = [each for each in found if isinstance(each, Entry)]
    problems = [each for each in found if isinstance(each, Problem)] + _misnamed(entries)
    if not found:
        problems = [Problem(source, "holds no task")]
    if problems:
        lines = "".join(f"\n    {problem.where}: {problem.what}" for problem in problems)
        raise TasksetError(f"taskset.path={source}: {len(problems)} of its tasks cannot be used, so none is{lines}")
    undecided = sorted((entry for entry in entries if entry.split is None), key=lambda entry: fraction(entry.id))
    first = sum(fraction(entry.id) < 1 - eval_share for entry in undecided)
    declared = {entry.split for entry in entries}
    if "train" not in declared:
        first = max(first, 1)
    if eval_share and "eval" not in declared and len(entries) > 1:
        first = min(first, len(undecided) - 1)
    training = [entry for entry in entries if entry.split == "train"] + undecided[:first]
    held_out = [entry for entry in entries if entry.split == "eval"] + undecided[first:]
    if not training:
        raise TasksetError(f"taskset.path={source}: all of its tasks are held out; give some of them the split 'train'")
    return Listing(
        training=tuple(sorted(training, key=lambda entry: entry.id)),
        held_out=tuple(sorted(held_out, key=lambda entry: fraction(entry.id))),
    )


def _misnamed(entries: Sequence[Entry]) -> list[Problem]:
    first: dict[str, str] = {}
    problems = []
    for entry in entries:
        if not ID.fullmatch(entry.id) or AGAIN.search(entry.id):
            what = "up to 80 letters, digits, '.', '_' and '-' name a task, with no '-x2' at the end"
            problems.append(Problem(entry.where, f"the id {entry.id!r} cannot be part of a file's name; {what}"))
        elif first.setdefault(entry.id, entry.where) != entry.where:
            problems.append(Problem(entry.where, f"the id {entry.id!r} is taken by {first[entry.id]}"))
    return problems


def fraction(task_id: str) -> float:
    """A number in [0, 1) that belongs to an id for good."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) / 2**64
