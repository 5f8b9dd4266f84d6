import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tree_shapes import parents, visible

from clawexp.model.tree_plan import blocks_of, schedule


@given(parents())
def test_blocks_cover_each_visible_pair_once(parent):
    count = np.zeros((len(parent), len(parent)), dtype=int)
    blocks = blocks_of(parent)
    for start, end in blocks.causal:
        count[start:end, start:end] += np.tri(end - start, dtype=int)
    for side in blocks.sides:
        count[side.start : side.end, side.key_start : side.key_end] += 1
    assert np.array_equal(count, visible(parent))


@given(parents(), st.integers(1, 12), st.sampled_from([0, 5, 12, 20, math.inf]))
def test_a_schedule_computes_each_token_once_below_what_is_open(parent, pack_tokens, graph_tokens):
    above: list[int] = []
    computed: list[int] = []
    for step in schedule(parent, pack_tokens, graph_tokens):
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
