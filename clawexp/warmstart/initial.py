"""First weights: random but for two circuits that make a small model copy from its first step.

Layer 0 has heads that look at the token before (rotary phases that agree at a distance of one) and note its embedding;
layer 1 has heads that look for the place where the current token was noted as the one before, and repeat what stands
there. Both form by themselves in larger models after many more tokens than a laptop cares to spend. All weights are
trained afterwards.

Coordinates of the hidden state: 0 is the same for every token, 1 to 63 are the token, 64 to 126 the token before.
"""

import math

import torch
from torch import Tensor

from clawexp.model.decoder import Policy

CONSTANT = 0
TOKEN = slice(1, 64)
BEFORE = slice(64, 127)
HALVES = ((1, 33), (33, 64))
"""A key/value head has 32 coordinates, so two of them carry the token."""
PHASE_SHARES = (0.4, 0.3, 0.2, 0.1)
"""Of the fastest rotary pairs in the match by distance; a single pair would match again after a full turn."""
SHARPNESS = 2.4
"""Of queries and keys, over their norm."""
ECHO = 3.0
"""How much louder what is repeated is than what was read."""


def initialise(policy: Policy, seed: int) -> None:
    """Set all weights of a policy of the tiny shape: hidden 128, heads 4 of 32, key/value heads 2."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.dim() == 1:
                weight.fill_(1.0)
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3 * weight.shape[1] ** -0.5)
        _embed(policy.embedding, generator)
        _look_back(policy, rope_theta=policy.shape.rope_theta)
        _repeat(policy, generator)


def _embed(embedding: Tensor, generator: torch.Generator) -> None:
    width = TOKEN.stop - TOKEN.start
    embedding.copy_(torch.randn(embedding.shape, generator=generator) * 0.01)
    embedding[:, TOKEN] = torch.randn((len(embedding), width), generator=generator) * width**-0.5
    embedding[:, CONSTANT] = 0.3


def _look_back(policy: Policy, rope_theta: float) -> None:
    """Layer 0: heads 0 and 2 attend to the token before and copy its coordinates to BEFORE."""
    layer, shape = policy.layers[0], policy.shape
    dim, half = shape.head_dim, shape.head_dim // 2
    query, key = torch.zeros(dim), torch.zeros(dim)
    for pair, share in enumerate(PHASE_SHARES):
        angle = rope_theta ** (-pair / half)
        query[pair], query[pair + half] = math.sqrt(share) * math.cos(angle), -math.sqrt(share) * math.sin(angle)
        key[pair] = math.sqrt(share)
    layer.q_norm.fill_(SHARPNESS)
    layer.k_norm.fill_(SHARPNESS)
    volume = math.sqrt(shape.hidden)
    for number, (first, end) in enumerate(HALVES):
        head = 2 * number
        _rows(layer.qkv, head, dim)[:] = 0
        _rows(layer.qkv, head, dim)[:, CONSTANT] = query
        keys, values = shape.heads + number, shape.heads + shape.kv_heads + number
        _rows(layer.qkv, keys, dim)[:] = 0
        _rows(layer.qkv, keys, dim)[:, CONSTANT] = key
        _select(_rows(layer.qkv, values, dim), first, end)
        _write(layer.o, head, dim, first + BEFORE.start - TOKEN.start, end - first, 1.0 / volume)


def _repeat(policy: Policy, generator: torch.Generator) -> None:
    """Layer 1: heads 0 and 2 attend to where the current token is BEFORE, and repeat the token there."""
    layer, shape = policy.layers[1], policy.shape
    dim, half = shape.head_dim, shape.head_dim // 2
    # Rotary pairs that turn little within the length of a task, so that the match is one of content.
    slow = [pair + offset for offset in (0, half) for pair in range(7, half)]
    layer.q_norm.fill_(SHARPNESS)
    layer.k_norm.fill_(SHARPNESS)
    volume = math.sqrt(shape.hidden / 2)
    for number, (first, end) in enumerate(HALVES):
        head = 2 * number
        match = torch.randn((len(slow), TOKEN.stop - TOKEN.start), generator=generator)
        query, key = _rows(layer.qkv, head, dim), _rows(layer.qkv, shape.heads + number, dim)
        query[:], key[:] = 0, 0
        query[slow, TOKEN] = match
        key[slow, BEFORE] = match
        _select(_rows(layer.qkv, shape.heads + shape.kv_heads + number, dim), first, end)
        _write(layer.o, head, dim, first, end - first, ECHO / volume)


def _rows(matrix: Tensor, head: int, dim: int) -> Tensor:
    return matrix[head * dim : (head + 1) * dim]


def _select(rows: Tensor, first: int, end: int) -> None:
    """Make a head's values the coordinates `first` to `end` of the hidden state."""
    rows[:] = 0
    rows[range(end - first), range(first, end)] = 1


def _write(o: Tensor, head: int, dim: int, first: int, width: int, scale: float) -> None:
    """Let a head write its values to the coordinates from `first` on."""
    o[:, head * dim : (head + 1) * dim] = 0
    o[range(first, first + width), range(head * dim, head * dim + width)] = scale
