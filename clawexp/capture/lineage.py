"""Which call of a rollout shares the longest beginning with a new one, to the token.

Calls hang in a tree: each at the call and the place where its ids leave those of an earlier one. A new prompt goes
down from the roots, compared once id by id. n calls of one conversation take O(tokens) of memory, and O(n tokens) of
time, but at the speed at which memory is read.
"""

from collections.abc import Sequence

import numpy as np

from clawexp.capture.exchange import Exchange


class Lineage:
    """The calls of one rollout by their ids."""

    def __init__(self) -> None:
        self._roots: list[Exchange] = []

    def hang(self, exchange: Exchange, sampled_ids: Sequence[int]) -> None:
        """Set `exchange.parent` and `exchange.shared`; from now on it may be a parent itself."""
        sequence = np.concatenate([exchange.prompt, np.asarray(sampled_ids, dtype=np.int32)])
        parent, left = self._deepest(sequence, exchange.base)
        # Answers to one prompt may begin alike, too: that is where the call hangs, but its prompt ends before.
        exchange.parent, exchange.left, exchange.shared = parent, left, min(left, len(exchange.prompt))
        (self._roots if parent is None else parent.children).append(exchange)
        _share(exchange, sequence)

    def _deepest(self, sequence: np.ndarray, base: Exchange | None) -> tuple[Exchange | None, int]:
        parent, left, level = None, 0, self._roots
        if base is not None and base.sequence is not None and _common(base, sequence, 0) == len(base.sequence):
            parent, left = base, len(base.sequence)
            while parent.parent is not None and parent.left == left:  # it is itself the beginning of another one
                parent = parent.parent
            level = [child for child in parent.children if child.left == left]
        while level:
            reached, best = max(((_common(each, sequence, left), each) for each in level), key=lambda pair: pair[0])
            if reached == left:
                break
            parent, left = best, reached
            # Whoever left it earlier differs from these ids where `best` agrees; whoever did later, no longer agrees.
            level = [child for child in best.children if child.left == reached]
        return parent, left


def _common(exchange: Exchange, sequence: np.ndarray, known: int) -> int:
    """Length of the common beginning, of which `known` ids are known to agree."""
    own = exchange.sequence
    assert own is not None
    length = min(len(own), len(sequence))
    if known == length or own[known] != sequence[known]:
        return known
    differs = np.flatnonzero(own[known:length] != sequence[known:length])
    return known + int(differs[0]) if len(differs) else length


def _share(exchange: Exchange, sequence: np.ndarray) -> None:
    """Keep one copy of the ids for it and for every call that it continues whole."""
    exchange.sequence, exchange.prompt = sequence, sequence[: len(exchange.prompt)]
    parent, left = exchange.parent, exchange.left
    while parent is not None and parent.sequence is not None and left == len(parent.sequence):
        parent.sequence, parent.prompt = sequence[:left], sequence[: len(parent.prompt)]
        parent, left = parent.parent, parent.left
