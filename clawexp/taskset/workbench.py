"""Small office-like tasks, made to order: files, an instruction, an exact grader and a known solution.

Training and held-out tasks share phrasings and nothing else: no file name, no word, no number, no answer.
"""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from clawexp.component import component
from clawexp.records import Split, Task
from clawexp.spec import Positive
from clawexp.taskset.draft import Family
from clawexp.taskset.draw import Draw
from clawexp.taskset.families import level1, level2, level3, level4


@component
class Workbench:
    """A generator of workspace tasks; families take turns."""

    level: Annotated[int, Field(ge=1, le=4)]
    """1: one short file. 2: a small transformation, or two files. 3: counts, sums, joins. 4: many files."""
    families: tuple[str, ...]
    """Families of this level or a lower one; empty takes all of the level."""
    long_tokens: Positive
    """About so many tokens in the files of a level 4 task."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = {name for level in self._levels()[: self.level] for name in level}
        unknown = [name for name in self.families if name not in known]
        if unknown:
            names, choice = ", ".join(unknown), ", ".join(sorted(known))
            raise ValueError(f"level {self.level} has no family {names}; choose from {choice}")
        return self

    def train(self, step: int, num_tasks: int, seed: int) -> Sequence[Task]:
        first = step * num_tasks
        return [self._task("train", f"{seed}-{step}-{number}", first + number) for number in range(num_tasks)]

    def evaluation(self, num_tasks: int) -> Sequence[Task]:
        return [self._task("eval", str(number), number) for number in range(num_tasks)]

    def _task(self, split: Split, key: str, turn: int) -> Task:
        chosen = self._chosen()
        level, name, family = chosen[turn % len(chosen)]
        draft = family(Draw(split, f"{split}/{name}/{key}"))
        return draft.task(f"{name}-{split}-{key}", split, (f"level{level}", name))

    def _chosen(self) -> list[tuple[int, str, Family]]:
        """Level, name and family of those that take turns."""
        found = [
            (number, name, family)
            for number, level in enumerate(self._levels(), start=1)
            for name, family in level.items()
        ]
        if self.families:
            return [each for each in found if each[1] in self.families]
        return [each for each in found if each[0] == self.level]

    def _levels(self) -> list[dict[str, Family]]:
        return [level1.FAMILIES, level2.FAMILIES, level3.FAMILIES, level4.families(self.long_tokens)]
