"""Keys and values of every slot, and which tokens they belong to.

Shapes: L layers, B slots, G key/value heads, T capacity in tokens, D head_dim, k experts chosen for each token.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clawexp.model.checkpoint import Shape

STRIDE = 256
"""Capacity grows by multiples of this."""


class SlotCache:
    """Slots of keys and values [L, B, G, T, D], growing by need; and of the experts that made them, [B, T, L, k]."""

    def __init__(self, shape: Shape, slots: int, context: int) -> None:
        self._context = context
        size = (shape.layers, slots, shape.kv_heads, 0, shape.head_dim)
        self.keys, self.values = torch.empty(size), torch.empty(size)
        self.experts = None
        """int16; None of a dense model."""
        if shape.experts is not None:
            self.experts = torch.empty((slots, 0, shape.layers, shape.experts.chosen), dtype=torch.int16)
        self._tokens = np.zeros((slots, context), dtype=np.int64)
        self._lengths = [0] * slots

    def length(self, slot: int) -> int:
        """So many tokens of a slot are computed."""
        return self._lengths[slot]

    def extend(self, slot: int, ids: NDArray[np.int64] | int) -> None:
        """Note that keys and values of these ids were written behind the others."""
        start = self._lengths[slot]
        count = 1 if isinstance(ids, int) else len(ids)
        self._tokens[slot, start : start + count] = ids
        self._lengths[slot] = start + count

    def truncate(self, slot: int, length: int) -> None:
        """Keep only the first `length` tokens of a slot."""
        self._lengths[slot] = min(length, self._lengths[slot])

    def common(self, slot: int, ids: NDArray[np.int64]) -> int:
        """Length of the beginning that a slot shares with `ids`."""
        return common_length(self._tokens[slot, : self._lengths[slot]], ids)

    def copy(self, source: int, target: int, length: int) -> None:
        """Give `target` the first `length` tokens of `source`."""
        for cache in (self.keys, self.values):
            cache[:, target, :, :length] = cache[:, source, :, :length]
        if self.experts is not None:
            self.experts[target, :length] = self.experts[source, :length]
        self._tokens[target, :length] = self._tokens[source, :length]
        self._lengths[target] = length

    def reserve(self, length: int) -> None:
        """Have room for `length` tokens in every slot."""
        have = self.keys.shape[3]
        if length <= have:
            return
        capacity = min(-(-max(length, have + have // 2) // STRIDE) * STRIDE, -(-self._context // STRIDE) * STRIDE)
        self.keys, self.values = (_grown(cache, capacity) for cache in (self.keys, self.values))
        if self.experts is not None:
            self.experts = F.pad(self.experts, (0, 0, 0, 0, 0, capacity - have))

    def chosen(self, slot: int) -> NDArray[np.int16] | None:
        """The experts of each token of a slot, [length, L, k]; None of a dense model."""
        return None if self.experts is None else self.experts[slot, : self._lengths[slot]].numpy().copy()


def common_length(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Length of the beginning that two rows of ids share."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count


def _grown(cache: Tensor, capacity: int) -> Tensor:
    layers, slots, groups, have, dim = cache.shape
    # Zeros, for what was never written must not turn masked scores into NaN.
    grown = cache.new_zeros(layers, slots, groups, capacity, dim)
    grown[:, :, :, :have] = cache
    return grown
