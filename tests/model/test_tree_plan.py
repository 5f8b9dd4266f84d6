import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clawexp.model.tree_plan import blocks_of, schedule


@st.composite
def parents(draw: st.DrawFn) -> np.ndarray:
    """Random trees in depth-first order: each token hangs somewhere on the path to the one before it."""
    parent = [-1]
    for token in range(1, draw(st.integers(1, 40))):
        path = [token - 1]
        while path[-1] >= 0:
            path.append(parent[path[-1]])
        continues = draw(st.booleans())
        parent.append(path[0] if continues else draw(st.sampled_from(path)))
    return np.array(parent)


@given(parents())
def test_blocks_cover_each_visible_pair_once(parent):
    count = np.zeros((len(parent), len(parent)), dtype=int)
    blocks = blocks_of(parent)
    for start, end in blocks.causal:
        count[start:end, start:end] += np.tri(end - start, dtype=int)
    for side in blocks.sides:
        count[side.start : side.end, side.key_start : side.key_end] += 1
    assert np.array_equal(count, visible(parent))


@given(parents(), st.integers(1, 12), st.booleans())
def test_a_schedule_computes_each_token_once_below_what_is_open(parent, pack_tokens, split):
    above: list[int] = []
    computed: list[int] = []
    for step in schedule(parent, pack_tokens, split):
        tokens = list(range(step.start, step.end))
        if step.kind == "close":
            assert above[-len(tokens) :] == tokens
            del above[-len(tokens) :]
            continue
        sees = np.flatnonzero(visible(parent)[step.start]).tolist()
        assert sees[:-1] == above
        inside = {token for token in tokens if parent[token] >= step.start}
        assert all(parent[token] == (above[-1] if above else -1) for token in set(tokens) - inside)
        computed += tokens
        if step.kind == "open":
            above += tokens
    assert computed == list(range(len(parent)))
    assert not above


def visible(parent: np.ndarray) -> np.ndarray:
    """[N, N] 1 where a key is on the path to a query."""
    seen = np.eye(len(parent), dtype=int)
    for token, up in enumerate(parent):
        if up >= 0:
            seen[token] |= seen[up]
    return seen
