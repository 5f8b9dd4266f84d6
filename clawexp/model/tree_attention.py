"""Attention over packed trees on a CPU: each dense block by the flash kernel, merged by their log-sum-exps.

With O and L the merged output and log-sum-exp of a query, the kernel's own backward pass gives the exact gradients of
each block when it is handed O and L in place of the block's: softmax weights are exp(score - L) whatever the block.
FlexAttention has no backward pass on CPUs.

Shapes: N tokens, S tokens before them, H query heads, G key/value heads, D head_dim.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clawexp.model.tree_plan import Blocks

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Past:
    """Keys and values [S, G, D] of one layer that every query of a pack sees, and where their gradients add up."""

    keys: Tensor
    values: Tensor
    keys_grad: Tensor
    values_grad: Tensor


def tree_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, past: Past | None) -> Tensor:
    """What each query [N, H, D] sees of keys and values [N, G, D] of its path -> [N, H, D].

    The backward pass also adds into the gradients of `past`.
    """
    return _TreeAttention.apply(q, k, v, blocks, past)  # pyright: ignore[reportReturnType]


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, past: Past | None) -> Tensor:
        q, k, v = _grouped(q, k.shape[1]), _heads_first(k), _heads_first(v)
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
        for start, end in blocks.causal:
            out[:, :, start:end], lse[:, :, start:end] = _see(q, k, v, (start, end), (start, end), True)
        for side in blocks.sides:
            queries, keys = (side.start, side.end), (side.key_start, side.key_end)
            _merge(out, lse, queries, *_see(q, k, v, queries, keys, False))
        if past is not None:
            everyone = (0, q.shape[2])
            keys, values = _heads_first(past.keys), _heads_first(past.values)
            _merge(out, lse, everyone, *_see(q, keys, values, everyone, (0, keys.shape[1]), False))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.blocks, ctx.past = blocks, past
        return _flat(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, lse = ctx.saved_tensors
        seen = (_grouped(grads[0], k.shape[0]), q, out, lse)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for start, end in ctx.blocks.causal:
            _add_grads(seen, (k, v), (start, end), (start, end), True, (dq, dk, dv))
        for side in ctx.blocks.sides:
            _add_grads(seen, (k, v), (side.start, side.end), (side.key_start, side.key_end), False, (dq, dk, dv))
        if ctx.past is not None:
            past: Past = ctx.past
            memory = _heads_first(past.keys), _heads_first(past.values)
            memory_grads = _heads_first(past.keys_grad), _heads_first(past.values_grad)
            _add_grads(seen, memory, (0, q.shape[2]), (0, memory[0].shape[1]), False, (dq, *memory_grads))
        return _flat(dq), dk.transpose(0, 1), dv.transpose(0, 1), None, None


def _grouped(q: Tensor, groups: int) -> Tensor:
    """[N, H, D] -> [H/G, G, N, D]: the query heads of one key head are a batch, so keys need no copies."""
    return q.unflatten(1, (groups, -1)).permute(2, 1, 0, 3).contiguous()


def _flat(grouped: Tensor) -> Tensor:
    """[H/G, G, N, D] -> [N, H, D]."""
    return grouped.permute(2, 1, 0, 3).flatten(1, 2)


def _heads_first(x: Tensor) -> Tensor:
    """[N, G, D] -> [G, N, D], a view."""
    return x.transpose(0, 1)


def _see(
    q: Tensor, k: Tensor, v: Tensor, queries: tuple[int, int], keys: tuple[int, int], causal: bool
) -> tuple[Tensor, Tensor]:
    k, v = (x[None, :, slice(*keys)].expand(len(q), -1, -1, -1) for x in (k, v))
    return _flash(q[:, :, slice(*queries)], k, v, 0.0, causal)


def _merge(out: Tensor, lse: Tensor, queries: tuple[int, int], more: Tensor, more_lse: Tensor) -> None:
    """Fold one more block into what the queries have seen, in place."""
    out, lse = out[:, :, slice(*queries)], lse[:, :, slice(*queries)]
    share = torch.sigmoid(more_lse - lse)[..., None]
    out.lerp_(more, share)
    torch.logaddexp(lse, more_lse, out=lse)


def _add_grads(
    seen: tuple[Tensor, Tensor, Tensor, Tensor],
    memory: tuple[Tensor, Tensor],
    queries: tuple[int, int],
    keys: tuple[int, int],
    causal: bool,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    grad, q, out, lse = (x[:, :, slice(*queries)] for x in seen)
    k, v = (x[None, :, slice(*keys)].expand(len(q), -1, -1, -1) for x in memory)
    more = _flash_backward(grad, q, k, v, out, lse, 0.0, causal)
    dq, dk, dv = grads
    dq[:, :, slice(*queries)] += more[0]
    dk[:, slice(*keys)] += more[1].sum(0)
    dv[:, slice(*keys)] += more[2].sum(0)
