"""The forward passes of generation, over the slots' keys and values.

Shapes: N rows of a step, G key/value heads, H query heads, D head_dim, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clawexp.engine.cache import SlotCache
from clawexp.model.decoder import Policy
from clawexp.model.target_head import target_logprobs
from clawexp.model.tree_policy import Route
from clawexp.records import Scored

See = Callable[[int, Tensor], Tensor]
"""Layer and queries [N, H, D] of the slots in a step -> what they see, [N, H, D]."""


class Forward:
    """Prompt chunks and single tokens through the policy, into the cache."""

    def __init__(self, policy: Policy, cache: SlotCache, slots: int, fixed_batch: bool) -> None:
        self._policy, self._cache, self._slots = policy, cache, slots
        self._fixed_batch = fixed_batch
        """Every step computes all slots, and attention slot by slot: bits do not depend on who else is there."""
        for layer in policy.layers:
            if layer.experts is not None:
                layer.experts.alone = fixed_batch

    def chunk(self, slot: int, ids: NDArray[np.int64]) -> Tensor:
        """Compute the next tokens of a slot's prompt -> logits [1, V] after the last of them."""
        cache, start = self._cache, self._cache.length(slot)
        end = start + len(ids)
        cache.reserve(end)
        visible = torch.ones(len(ids), end, dtype=torch.bool).tril(start)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.keys[layer, slot, :, :end], cache.values[layer, slot, :, :end]
            keys[:, start:], values[:, start:] = k.transpose(0, 1), v.transpose(0, 1)
            # [N, H, D] -> [H/G, G, N, D]: the query heads of one key head are a batch over the same keys.
            grouped = q.unflatten(1, (len(keys), -1)).permute(2, 1, 0, 3)
            keys, values = (x.expand(len(grouped), -1, -1, -1) for x in (keys, values))
            out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible)
            return out.permute(2, 1, 0, 3).flatten(1)

        def note(layer: int, own: Tensor) -> Tensor:
            assert cache.experts is not None
            cache.experts[slot, start:end, layer] = own.to(torch.int16)
            return own

        hidden = self._hidden(torch.from_numpy(ids), torch.arange(start, end), attend, note)
        cache.extend(slot, ids)
        return self._policy.logits(self._policy.final(hidden[-1:]))

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Compute one more token in each of the given slots, in ascending order -> logits [len(slots), V]."""
        cache, lengths = self._cache, [self._cache.length(slot) for slot in slots]
        end = max(lengths) + 1
        cache.reserve(end)
        slot, length = torch.tensor(slots), torch.tensor(lengths)
        row = slot if self._fixed_batch else torch.arange(len(slots))
        token = torch.zeros(self._slots if self._fixed_batch else len(slots), dtype=torch.int64)
        position = torch.zeros_like(token)
        token[row], position[row] = torch.tensor(ids), length
        see = self._slot_by_slot(slots, lengths) if self._sparse(slots) else self._together(slot, length, end)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            every = len(slot) == len(q)
            cache.keys[layer, slot, :, length] = k if every else k[row]
            cache.values[layer, slot, :, length] = v if every else v[row]
            if every:
                return see(layer, q)
            return torch.zeros_like(q).index_copy_(0, row, see(layer, q[row]))

        def note(layer: int, own: Tensor) -> Tensor:
            assert cache.experts is not None
            cache.experts[slot, length, layer] = own[row].to(torch.int16)
            return own

        hidden = self._hidden(token, position, attend, note)
        for number, taken in zip(slots, ids, strict=True):
            cache.extend(number, taken)
        return self._policy.logits(self._policy.final(hidden))[row]

    def _sparse(self, slots: Sequence[int]) -> bool:
        """Whether one kernel over all slots up to the last would be mostly idle."""
        return self._fixed_batch or 2 * len(slots) <= max(slots)

    def _slot_by_slot(self, slots: Sequence[int], lengths: Sequence[int]) -> See:
        cache = self._cache

        def see(layer: int, q: Tensor) -> Tensor:
            q = self._grouped(q)
            seen = [
                F.scaled_dot_product_attention(
                    q[row : row + 1],
                    cache.keys[layer, slot : slot + 1, :, : length + 1],
                    cache.values[layer, slot : slot + 1, :, : length + 1],
                )
                for row, (slot, length) in enumerate(zip(slots, lengths, strict=True))
            ]
            return torch.cat(seen).flatten(1, 2)

        return see

    def _together(self, slot: Tensor, length: Tensor, end: int) -> See:
        cache, count = self._cache, int(slot[-1]) + 1
        last = torch.zeros(count, dtype=torch.int64)
        last[slot] = length
        # As scores to add: the kernel would turn a bool mask into them once per layer.
        hide = torch.zeros(count, 1, 1, end).masked_fill_(
            (torch.arange(end) > last[:, None])[:, None, None], float("-inf")
        )

        def see(layer: int, q: Tensor) -> Tensor:
            q = q if count == len(slot) else q.new_zeros(count, *q.shape[1:]).index_copy_(0, slot, q)
            keys, values = cache.keys[layer, :count, :, :end], cache.values[layer, :count, :, :end]
            seen = F.scaled_dot_product_attention(self._grouped(q), keys, values, attn_mask=hide).flatten(1, 2)
            return seen if count == len(slot) else seen[slot]

        return see

    def _grouped(self, q: Tensor) -> Tensor:
        """[N, H, D] -> [N, G, H/G, D]: the query heads of one key head stand where query positions would."""
        return q.unflatten(1, (self._policy.shape.kv_heads, -1))

    def _hidden(
        self, ids: Tensor, position: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor], note: Route
    ) -> Tensor:
        hidden, rope = self._policy.embed(ids), self._policy.rope(position)
        for number, layer in enumerate(self._policy.layers):
            hidden = layer(hidden, rope, partial(attend, number), partial(note, number))
        return hidden


def score(policy: Policy, ids: Sequence[int]) -> Scored:
    """What a policy says of ids."""
    tokens, shape = torch.tensor(ids), policy.shape
    used = None
    if shape.experts is not None:
        used = np.zeros((len(ids) - 1, shape.layers, shape.experts.chosen), dtype=np.int16)

    def note(layer: int, own: Tensor) -> Tensor:
        assert used is not None
        used[:, layer] = own.numpy()
        return own

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return seen[0].transpose(0, 1)

    hidden, rope = policy.embed(tokens[:-1]), policy.rope(torch.arange(len(tokens) - 1))
    for number, layer in enumerate(policy.layers):
        hidden = layer(hidden, rope, attend, partial(note, number))
    logprobs = target_logprobs(policy.final(hidden), policy.head, tokens[1:], 1.0, None)
    return Scored(logprobs=tuple(logprobs.tolist()), experts=used)


def sample(
    logits: Tensor, temperature: Sequence[float], chance: Sequence[float], said: Sequence[int | None] = ()
) -> tuple[list[int], list[float]]:
    """Draw one id from each row of logits [N, V] by inverting its distribution function at `chance` in [0, 1).

    A row whose `said` is an id takes that one. Returns ids and their logprobs under softmax(logits / temperature).
    """
    logprobs = (logits / torch.tensor(temperature)[:, None]).log_softmax(-1)
    # In float64: a float32 sum over a large vocabulary would lose its rare ids.
    reached = logprobs.exp().cumsum(-1, dtype=torch.float64)
    want = torch.tensor(chance, dtype=torch.float64)[:, None] * reached[:, -1:]
    ids = torch.searchsorted(reached, want, right=True).clamp(max=logits.shape[1] - 1)
    for row, token in enumerate(said):
        if token is not None:
            ids[row] = token
    return ids[:, 0].tolist(), logprobs.gather(1, ids)[:, 0].tolist()
