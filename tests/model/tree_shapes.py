"""Random trees in depth-first order, and who sees whom in them."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def parents(draw: st.DrawFn, most: int = 40) -> np.ndarray:
    """Each token hangs somewhere on the path to the one before it."""
    parent = [-1]
    for token in range(1, draw(st.integers(1, most))):
        path = [token - 1]
        while path[-1] >= 0:
            path.append(parent[path[-1]])
        continues = draw(st.booleans())
        parent.append(path[0] if continues else draw(st.sampled_from(path)))
    return np.array(parent)


def visible(parent: np.ndarray) -> np.ndarray:
    """[N, N] 1 where a key is on the path to a query."""
    seen = np.eye(len(parent), dtype=int)
    for token, up in enumerate(parent):
        if up >= 0:
            seen[token] |= seen[up]
    return seen
