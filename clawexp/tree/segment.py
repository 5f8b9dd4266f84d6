"""Segments, the parts that a prefix tree is made of, and the radix tree in which they grow."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Edge = Literal["continue", "tool", "retry_infra", "retry_model", "compaction", "subagent", "rewrite", "duplicate"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """A run of tokens with one origin.

    `Segment(ids=[3, 9], parent=0, sampled=True, logprobs=[-.1, -2.], versions=[4, 4], owners=(0,),
    calls=("c0",), edge="continue", kind="main", trained=True)`
    """

    ids: NDArray[np.int32]
    parent: int
    """Index of the segment that it follows; -1 where it begins a prompt."""
    sampled: bool
    """True: an answer, or a part of one. False: what the environment put there."""
    logprobs: NDArray[np.float32]
    """Of each id under the sampling distribution; empty where not sampled."""
    versions: NDArray[np.int32]
    """Of the weights that each id was drawn from; empty where not sampled."""
    owners: tuple[int, ...]
    """Rollouts that sampled it, or whose prompts hold it: indices into `Tree.rollouts`, each at most once."""
    calls: tuple[str, ...]
    """For each owner, the call that sampled it or brought it first."""
    edge: Edge
    """How it follows its parent; of an answer also what became of it: retry_infra, retry_model, duplicate."""
    kind: Literal["main", "auxiliary"]
    """Of the call that brought it first."""
    trained: bool
    """False: context only."""
    experts: NDArray[np.int16] | None = None
    """That the engine sent each token to, [ids, layers, k]; -1 where no call tells, as of an answer's last token that
    no call goes on from. None: nothing is told of any."""

    def __post_init__(self) -> None:
        length = len(self.ids) if self.sampled else 0
        if not len(self.ids):
            raise ValueError("a segment holds at least one id")
        if not len(self.logprobs) == len(self.versions) == length:
            raise ValueError(
                f"{length} sampled ids, but {len(self.logprobs)} logprobs and {len(self.versions)} versions"
            )
        if len(self.owners) != len(self.calls) or len(set(self.owners)) != len(self.owners):
            raise ValueError(f"owners {self.owners} and calls {self.calls} do not pair")

    def cut(self, at: int) -> tuple["Segment", "Segment"]:
        """The first `at` ids, and the rest."""
        head = replace(self, ids=self.ids[:at], logprobs=self.logprobs[:at], versions=self.versions[:at])
        tail = replace(self, ids=self.ids[at:], logprobs=self.logprobs[at:], versions=self.versions[at:])
        if self.experts is not None:
            head, tail = replace(head, experts=self.experts[:at]), replace(tail, experts=self.experts[at:])
        return head, replace(tail, edge="continue")


@dataclass(eq=False)
class Node:
    """A segment while the tree grows, with children in order of arrival. The top of all has no segment."""

    segment: Segment | None = None
    children: list["Node"] = field(default_factory=list)
    arrived: int = 0
    """Number of the call that it came with."""

    def add(self, segment: Segment, arrived: int = 0) -> "Node":
        """Hang `segment` here as the last child."""
        self.children.append(Node(segment, arrived=arrived))
        return self.children[-1]

    def cut(self, at: int) -> None:
        """Keep the first `at` ids here; the rest becomes the only child."""
        assert self.segment is not None
        self.segment, tail = self.segment.cut(at)
        self.children = [Node(tail, self.children, self.arrived)]

    def branches(self) -> Iterator[tuple["Node", Segment]]:
        for child in self.children:
            assert child.segment is not None
            yield child, child.segment

    def longest(self, ids: NDArray[np.int32]) -> tuple["Node", int, int]:
        """The place below that spells most of `ids`: node, ids used inside it, ids used in all.

        Siblings may begin alike, so all that match are followed; of equal places the first to arrive wins, so that
        the same ids are spelled by the same place ever after.
        """
        best = (self, 0, 0)
        stack = [(branch, 0) for branch in reversed(list(self.branches()))]
        while stack:
            (node, segment), done = stack.pop()
            inside = common_length(segment.ids, ids[done:])
            if (done + inside, -node.arrived) > (best[2], -best[0].arrived) and inside:
                best = (node, inside, done + inside)
            if inside == len(segment.ids):
                stack += [(branch, done + inside) for branch in reversed(list(node.branches()))]
        return best

    def flatten(self) -> tuple[Segment, ...]:
        """The segments below, depth-first."""
        segments: list[Segment] = []
        stack = [(branch, -1) for branch in reversed(list(self.branches()))]
        while stack:
            (node, segment), parent = stack.pop()
            stack += [(branch, len(segments)) for branch in reversed(list(node.branches()))]
            segments.append(replace(segment, parent=parent))
        return tuple(segments)


def either(experts: NDArray[np.int16] | None, others: NDArray[np.int16] | None) -> NDArray[np.int16] | None:
    """Those of the first, and of the second where the first tells nothing."""
    if experts is None or others is None:
        return others if experts is None else experts
    return np.where(experts < 0, others, experts)


def common_length(a: NDArray[np.generic], b: NDArray[np.generic]) -> int:
    """Length of the longest common beginning."""
    length = min(len(a), len(b))
    if not length or a[0] != b[0]:
        return 0
    differs = a[:length] != b[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
