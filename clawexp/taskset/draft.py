"""What a family makes of a draw: all of a task but its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clawexp.records import Split, Task
from clawexp.taskset.draw import Draw
from clawexp.taskset.grader import MANY_WEIGHTS, VALUE_WEIGHTS, FileGrader, Shape


@dataclass(frozen=True, kw_only=True)
class Draft:
    """`Draft(instruction="Copy a.txt to b.txt.", files={"a.txt": "x y"}, path="b.txt", answer="x y", ...)`"""

    instruction: str
    files: Mapping[str, str]
    """Text by path of those that lead to the answer, in the order in which a careful worker reads them."""
    path: str
    """The output file; where it is one of `files`, the task is to change that file."""
    answer: str
    """What the output file must hold."""
    shape: Shape
    aside: Mapping[str, str] = field(default_factory=dict)
    """Files that lie there and need not be read."""

    def laid(self) -> dict[str, bytes]:
        return {path: text.encode() for path, text in {**self.files, **self.aside}.items()}

    def grader(self) -> FileGrader:
        return FileGrader(
            path=self.path,
            answer=self.answer,
            shape=self.shape,
            weights=VALUE_WEIGHTS if self.shape == "value" else MANY_WEIGHTS,
            inputs={path: content for path, content in self.laid().items() if path != self.path},
            before=self.files.get(self.path),
        )

    def task(self, name: str, split: Split, tags: tuple[str, ...]) -> Task:
        reads = [("read", {"path": path}) for path in self.files]
        return Task(
            id=name,
            instruction=self.instruction,
            files=self.laid(),
            grader=self.grader(),
            split=split,
            tags=tags,
            oracle=(*reads, ("write", {"path": self.path, "content": self.answer})),
        )


Family = Callable[[Draw], Draft]
