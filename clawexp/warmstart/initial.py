"""First weights: random but for two circuits that make a small model copy from its first steps.

Layer 0 has heads that look at the token before and at the one before that (rotary phases that agree at that distance)
and note their embeddings; layer 1 has heads that look for the place where the current token, or the current two, were
noted as the ones before, and repeat what stands there. Both form by themselves in larger models after many more tokens
than a laptop cares to spend. All weights are trained afterwards.

Coordinates of the hidden state: 0 is the same for every token, then come the token, the one before it, the one before
that. The latter two are noted in part: enough to be told apart.
"""

import math

import torch
from torch import Tensor

from clawexp.model.decoder import Layer, Policy

CONSTANT = 0
TOKEN = slice(1, 49)
BEFORE = slice(49, 89)
BEFORE_THAT = slice(89, 127)
SINK = 127
"""Only of `<|im_start|>`, which has no other coordinates: what heads look at when nothing matches."""
PULL = 0.75
"""Of the sink on a query, where a full match has 1."""
HALVES = ((1, 25), (25, 49))
"""A key/value head has 32 coordinates, so two of them carry the token."""
NOTED = {1: (BEFORE.start, 20), 2: (BEFORE_THAT.start, 19)}
"""Distance -> where it is noted, and how many coordinates of each half."""
PHASE_SHARES = (0.4, 0.3, 0.2, 0.1)
"""Of the fastest rotary pairs in the match by distance; a single pair would match again after a full turn."""
FIRST_SLOW_PAIR = 7
"""Rotary pairs from here on turn little within the length of a task, so that a match in them is one of content."""
SHARPNESS = 2.4
"""Of queries and keys, over their norm."""
ECHO = 1.0
"""How much louder what is repeated is than what was read."""


def initialise(policy: Policy, seed: int, start: int) -> None:
    """Set all weights of a policy of the tiny shape: hidden 128, heads 4 of 32, key/value heads 2.

    `start` is the id of `<|im_start|>`.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.dim() == 1:
                weight.fill_(1.0)
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3 * weight.shape[1] ** -0.5)
        _embed(policy.embedding, start, generator)
        _look_back(policy.layers[0], policy.shape.rope_theta)
        _repeat(policy.layers[1], generator)


def _embed(embedding: Tensor, start: int, generator: torch.Generator) -> None:
    width = TOKEN.stop - TOKEN.start
    embedding.copy_(torch.randn(embedding.shape, generator=generator) * 0.01)
    embedding[:, TOKEN] = torch.randn((len(embedding), width), generator=generator) * width**-0.5
    embedding[:, CONSTANT] = 0.3
    embedding[start] = 0
    embedding[start, [CONSTANT, SINK]] = torch.tensor([0.3, 1.0])


def _look_back(layer: Layer, rope_theta: float) -> None:
    """Heads 0 and 2 attend to the token before, heads 1 and 3 to the one before that, and note them."""
    dim, half = layer.shape.head_dim, layer.shape.head_dim // 2
    layer.q_norm.fill_(SHARPNESS)
    layer.k_norm.fill_(SHARPNESS)
    loudness = 1.0 / math.sqrt(layer.shape.hidden)
    key = torch.zeros(dim)
    for pair, share in enumerate(PHASE_SHARES):
        key[pair] = math.sqrt(share)
    for number, (first, end) in enumerate(HALVES):
        keys, values = _keys_values(layer, number)
        keys[:] = 0
        keys[:, CONSTANT] = key
        _select(values, first, end)
        for distance, (start, width) in NOTED.items():
            head = 2 * number + distance - 1
            query = torch.zeros(dim)
            for pair, share in enumerate(PHASE_SHARES):
                angle = distance * rope_theta ** (-pair / half)
                query[pair] = math.sqrt(share) * math.cos(angle)
                query[pair + half] = -math.sqrt(share) * math.sin(angle)
            rows = _rows(layer.qkv, head, dim)
            rows[:] = 0
            rows[:, CONSTANT] = query
            _write(layer.o, head, dim, start + number * width, width, loudness)


def _repeat(layer: Layer, generator: torch.Generator) -> None:
    """Heads 0 and 1 attend to where the current token is the one BEFORE, 2 and 3 to where the current two are."""
    dim, half = layer.shape.head_dim, layer.shape.head_dim // 2
    slow = [pair + offset for offset in (0, half) for pair in range(FIRST_SLOW_PAIR, half)]
    layer.q_norm.fill_(SHARPNESS)
    layer.k_norm.fill_(SHARPNESS)
    loudness = ECHO / math.sqrt(layer.shape.hidden / 2)
    for number, (first, width) in enumerate(((TOKEN.start, dim), (TOKEN.stop - dim, dim))):
        keys, values = _keys_values(layer, number)
        keys[:] = 0
        one = torch.randn((len(slow), _noted(1)), generator=generator)
        two = torch.randn((len(slow), _noted(2)), generator=generator) * number
        keys[slow, BEFORE] = one
        keys[slow, BEFORE_THAT] = two
        pull = torch.randn(len(slow), generator=generator)
        # Read from the sink by keys and from the constant by queries, in the size that a match of one token has there.
        size = PULL * one.norm() / pull.norm() / math.sqrt(_noted(1)) * math.sqrt(1 + number)
        keys[slow, SINK] = pull * size
        _select(values, first, first + width)
        for head in (2 * number, 2 * number + 1):
            rows = _rows(layer.qkv, head, dim)
            rows[:] = 0
            _match(rows, slow, one, two)
            rows[slow, CONSTANT] = pull * size / 0.3
            _write(layer.o, head, dim, first, width, loudness / 2)


def _match(rows: Tensor, slow: list[int], one: Tensor, two: Tensor) -> None:
    """Queries that look for the current token in BEFORE, and for the one before it in BEFORE_THAT."""
    for number, (first, _) in enumerate(HALVES):
        _, width = NOTED[1]
        rows[slow, first : first + width] = one[:, number * width : (number + 1) * width]
        start, noted = NOTED[1]
        _, width = NOTED[2]
        begin = start + number * noted
        rows[slow, begin : begin + width] = two[:, number * width : (number + 1) * width]


def _noted(distance: int) -> int:
    return len(HALVES) * NOTED[distance][1]


def _keys_values(layer: Layer, number: int) -> tuple[Tensor, Tensor]:
    """The rows of one key/value head."""
    shape = layer.shape
    return (
        _rows(layer.qkv, shape.heads + number, shape.head_dim),
        _rows(layer.qkv, shape.heads + shape.kv_heads + number, shape.head_dim),
    )


def _rows(matrix: Tensor, head: int, dim: int) -> Tensor:
    return matrix[head * dim : (head + 1) * dim]


def _select(rows: Tensor, first: int, end: int) -> None:
    """Make a head's values the coordinates `first` to `end` of the hidden state."""
    rows[:] = 0
    rows[range(end - first), range(first, end)] = 1


def _write(o: Tensor, head: int, dim: int, first: int, width: int, scale: float) -> None:
    """Let a head write its first `width` values to the coordinates from `first` on."""
    o[:, head * dim : (head + 1) * dim] = 0
    o[range(first, first + width), range(head * dim, head * dim + width)] = scale
