"""Attention over packed trees on a GPU: FlexAttention, whose whole mask is one integer a token.

Key k is visible to query q iff k <= q < subtree_end[k]. Which blocks of that mask are empty, mixed or full is read off
the extremes of `subtree_end` in each block of keys, so nothing of size N x N is ever made. FlexAttention has no
backward pass on CPUs: there, `tree_attention` does the same.

Shapes: N tokens, H query heads, G key/value heads, D head_dim.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from clawexp.model.tree_plan import Ints, subtree_ends

BLOCK = 128
"""Tokens of one block of the mask, of queries and of keys."""


def tree_mask(parent: Ints, device: torch.device) -> BlockMask:
    """Of trees in depth-first order, their tokens padded to a multiple of BLOCK; padding sees itself alone."""
    count = -(-len(parent) // BLOCK)
    ends = np.arange(1, count * BLOCK + 1)
    ends[: len(parent)] = subtree_ends(parent)
    last, first = ends.reshape(count, BLOCK).max(1), ends.reshape(count, BLOCK).min(1)
    start = np.arange(count)[:, None] * BLOCK  # of each block of queries
    before = np.tri(count, k=-1, dtype=bool)
    full = before & (first >= start + BLOCK)
    mixed = np.eye(count, dtype=bool) | (before & (last > start) & ~full)
    end = torch.from_numpy(ends).to(device)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key])

    return BlockMask.from_kv_blocks(*_listed(mixed, device), *_listed(full, device), BLOCK_SIZE=BLOCK, mask_mod=visible)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, attention: Callable[..., Any]) -> Tensor:
    """What each query [N, H, D] sees of keys and values [N, G, D] -> [N, H, D], by some form of `flex_attention`."""
    padding = mask.shape[-1] - len(q)
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding)).transpose(0, 1)[None] for x in (q, k, v))
    out = attention(q, k, v, block_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)[: out.shape[2] - padding]


@functools.cache
def compiled() -> Callable[..., Any]:
    """`flex_attention` as one kernel, compiled once a process and shape."""
    return torch.compile(flex_attention)


def _listed(blocks: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """[n, n] -> how many of each row are set, int32 [1, 1, n], and those first in each row, int32 [1, 1, n, n]."""
    counts, order = blocks.sum(1), np.argsort(~blocks, 1, kind="stable")
    return tuple(torch.from_numpy(x.astype(np.int32))[None, None].to(device) for x in (counts, order))  # pyright: ignore[reportReturnType]
