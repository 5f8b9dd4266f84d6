"""Made-up sequences that teach to copy and to look up, densely: nearly every token of them must be said.

In demonstrations a file name is said once in a hundred tokens; from those alone, attention learns to copy only late.
"""

import random
from collections.abc import Sequence

from clawexp.warmstart.demonstration import Demonstration


def rehearse(rng: random.Random, ids: Sequence[int], start: int) -> Demonstration:
    """One sequence over `ids`, after the token `start`: a run said again, or values looked up by their keys."""
    return _repeat(rng, ids, start) if rng.random() < 0.5 else _recall(rng, ids, start)


def _repeat(rng: random.Random, ids: Sequence[int], start: int) -> Demonstration:
    """`a b c d e f .. c d e`: from the second token of the piece on, what comes next is known."""
    run = rng.choices(ids, k=rng.randint(12, 60))
    text, said = [start, *run], [False] * (len(run) + 1)
    for _ in range(rng.randint(2, 6)):
        length = rng.randint(3, 12)
        first = rng.randrange(max(1, len(run) - length))
        piece = run[first : first + length]
        gap = rng.choices(ids, k=rng.randint(1, 4))
        text += gap + piece
        said += [False] * (len(gap) + 1) + [True] * (len(piece) - 1)
    return Demonstration(text, said)


def _recall(rng: random.Random, ids: Sequence[int], start: int) -> Demonstration:
    """`k1 = v1 ; k2 = v2 ; ... k2 = v2`, keys and values of one to three tokens."""
    equals, end = rng.choices(ids, k=2)
    pairs = [(_word(rng, ids), _word(rng, ids)) for _ in range(rng.randint(2, 6))]
    text, said = [start], [False]
    for key, value in pairs:
        text += [*key, equals, *value, end]
    said += [False] * (len(text) - 1)
    for key, value in rng.sample(pairs, len(pairs)):
        text += [*key, equals, *value, end]
        said += [False] * len(key) + [len(key) > 1] + [True] * (len(value) + 1)
    return Demonstration(text, said)


def _word(rng: random.Random, ids: Sequence[int]) -> list[int]:
    return rng.choices(ids, k=rng.choice((1, 1, 2, 3)))
