"""What attends to what in packed trees, as a short list of dense blocks, and in what order to compute them.

Tokens of a tree stand in depth-first order, so the descendants of a token are one range behind it, and so are all the
side branches of a branch point. A **run** is a maximal range in which each token follows the one before it: it goes
through branch points into their first child. Two kinds of dense block then cover exactly the visible pairs:

    tokens      0 1 2 3 4 | 5 6 | 7 8           causal   [0,5) [5,7) [7,9)
    parent     -1 0 1 2 3 | 2 5 | 2 7           side     queries [5,9) x keys [0,3)

No mask, no copy of ancestors, one block for all siblings.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clawexp.errors import LearnerError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """All queries `[start, end)` see all keys `[key_start, key_end)`."""

    start: int
    end: int
    key_start: int
    key_end: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The dense blocks of one range of tokens."""

    causal: tuple[tuple[int, int], ...]
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """`open`: a unary chain whose subtrees follow, until its `close`. `pack`: whole subtrees, done at once."""

    kind: Literal["open", "pack", "close"]
    start: int
    end: int


def check_trees(position: Ints, parent: Ints) -> None:
    """Raise LearnerError unless these are trees in depth-first order with depths as positions."""
    index = np.arange(len(parent))
    if len(position) != len(parent) or np.any(parent >= index) or np.any(parent < -1):
        raise LearnerError("packed trees: every parent must stand before its child, or be -1")
    depth = np.where(parent < 0, 0, position[parent] + 1)
    if np.any(position != depth):
        at = int(np.flatnonzero(position != depth)[0])
        raise LearnerError(f"packed trees: token {at} has position {position[at]}, its parent implies {depth[at]}")
    _check_order(parent)


def blocks_of(parent: Ints) -> Blocks:
    """Cover the visible pairs of trees in depth-first order; parents below 0 are outside."""
    starts = _run_starts(parent).tolist()
    ends = [*starts[1:], len(parent)]
    sides: list[Side] = []
    stack: list[tuple[int, int, int]] = []  # start, key_start, key_end of the runs around the current token
    for start in starts:
        above = int(parent[start])
        _close(stack, above, start, sides)
        stack.append((start, stack[-1][0], above + 1) if stack else (start, 0, 0))
    _close(stack, -1, len(parent), sides)
    return Blocks(tuple(zip(starts, ends, strict=True)), _joined(sides))


def schedule(parent: Ints, pack_tokens: int, graph_tokens: float) -> list[Step]:
    """Order the work depth first, packing neighbouring subtrees up to `pack_tokens`.

    A larger subtree is packed alone where it and the chains that are open above it have no more than `graph_tokens`.
    Otherwise it is opened: its chain first, then what hangs below it. A subtree without branches is never opened.
    """
    subtree_end = subtree_ends(parent)
    children = np.bincount(parent[parent >= 0], minlength=len(parent))
    chain_ends = np.flatnonzero(children != 1)
    steps: list[Step] = []
    todo: list[Step | tuple[int, int, float]] = [(0, len(parent), graph_tokens)]
    while todo:
        item = todo.pop()
        if isinstance(item, Step):
            steps.append(item)
            continue
        first, last, room = item
        inner: list[Step | tuple[int, int, float]] = []
        for start, end in _packs(first, last, subtree_end, pack_tokens):
            chain_end = int(chain_ends[np.searchsorted(chain_ends, start)]) + 1
            if end - start <= max(pack_tokens, room) or chain_end == end:
                inner.append(Step("pack", start, end))
            else:
                below = (chain_end, end, room - (chain_end - start))
                inner += [Step("open", start, chain_end), below, Step("close", start, chain_end)]
        todo += reversed(inner)
    return steps


def subtree_ends(parent: Ints) -> list[int]:
    """Of each token, where what hangs below it ends: key k is visible to query q iff k <= q < ends[k]."""
    ends = list(range(1, len(parent) + 1))
    above = parent.tolist()
    for token in range(len(ends) - 1, -1, -1):
        up = above[token]
        if up >= 0 and ends[up] < ends[token]:
            ends[up] = ends[token]
    return ends


def _run_starts(parent: Ints) -> Ints:
    follows = parent == np.arange(len(parent)) - 1
    follows[:1] = False
    return np.flatnonzero(~follows)


def _check_order(parent: Ints) -> None:
    """A token may only hang below the path to the token before it."""
    starts = _run_starts(parent).tolist()
    path: list[tuple[int, int]] = []  # start and last token on the path, of each run around the current token
    for start, end in zip(starts, [*starts[1:], len(parent)], strict=True):
        above = int(parent[start])
        while path and path[-1][0] > above:
            path.pop()
        if above >= 0:
            if above > path[-1][1]:
                raise LearnerError(f"packed trees: token {start} is not in depth-first order")
            path[-1] = (path[-1][0], above)
        path.append((start, end - 1))


def _close(stack: list[tuple[int, int, int]], above: int, end: int, sides: list[Side]) -> None:
    while stack and stack[-1][0] > above:
        start, key_start, key_end = stack.pop()
        if key_end > key_start:
            sides.append(Side(start, end, key_start, key_end))


def _joined(sides: list[Side]) -> tuple[Side, ...]:
    """Join the blocks of neighbouring siblings."""
    joined: list[Side] = []
    for side in sorted(sides, key=lambda side: (side.key_start, side.key_end, side.start)):
        last = joined[-1] if joined else None
        if last and (last.key_start, last.key_end, last.end) == (side.key_start, side.key_end, side.start):
            joined[-1] = Side(last.start, side.end, side.key_start, side.key_end)
        else:
            joined.append(side)
    return tuple(joined)


def _packs(start: int, end: int, subtree_end: list[int], pack_tokens: int) -> list[tuple[int, int]]:
    """Cut sibling subtrees `[start, end)` into neighbours that fit together, larger ones alone."""
    packs: list[tuple[int, int]] = []
    while start < end:
        stop = subtree_end[start]
        if packs and stop - packs[-1][0] <= pack_tokens:
            packs[-1] = (packs[-1][0], stop)
        else:
            packs.append((start, stop))
        start = stop
    return packs
