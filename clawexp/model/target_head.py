"""Logprobs of target ids from hidden states, with logits [chunk, V] instead of [n, V] in memory at any moment.

The backward pass computes the logits again: one more product, and nothing of size V is kept.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK_FLOATS = 1 << 21
"""Logits held at once: 8 MiB of float32, which also stays near a core's cache."""
GPU_CHUNK_FLOATS = 1 << 27
"""The same on a GPU: 512 MiB of float32, products large enough to fill it."""


def target_logprobs(
    hidden: Tensor, head: Tensor, ids: Tensor, temperature: float, entropy_out: Tensor | None
) -> Tensor:
    """Logprob [n] of each id [n] under softmax(head @ hidden / temperature), hidden [n, hidden], head [V, hidden].

    Writes the entropy of each distribution, in nats, into `entropy_out` [n] where that is given. Of half-precision
    states and weights, logits are rounded to it once, and all else is in float32.
    """
    return _TargetLogprobs.apply(hidden, head, ids, temperature, entropy_out)  # pyright: ignore[reportReturnType]


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, temperature: float, entropy_out: Tensor | None
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, total = (hidden.new_empty(size, dtype=exact) for size in ((len(ids),), (len(ids), 1)))
        for rows in _chunks(len(ids), head):
            logits = (hidden[rows] @ head.T).to(exact).div_(temperature)
            total[rows] = logits.logsumexp(-1, keepdim=True)
            logprobs[rows] = (logits.gather(1, ids[rows, None]) - total[rows])[:, 0]
            if entropy_out is not None:
                chances = (logits - total[rows]).exp_()
                entropy_out[rows] = total[rows, 0] - chances.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, head, ids, total)
        ctx.temperature = temperature
        return logprobs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, head, ids, total = ctx.saved_tensors
        weight = grads[0][:, None] / ctx.temperature
        d_hidden, d_head = torch.empty_like(hidden), torch.zeros_like(head)
        for rows in _chunks(len(ids), head):
            logits = (hidden[rows] @ head.T).to(total.dtype).div_(ctx.temperature)
            d_logits = logits.sub_(total[rows]).exp_().mul_(-weight[rows])
            d_logits = d_logits.scatter_add_(1, ids[rows, None], weight[rows]).to(hidden.dtype)
            d_hidden[rows] = d_logits @ head
            d_head.addmm_(d_logits.T, hidden[rows])
        return d_hidden, d_head, None, None, None


def _chunks(count: int, head: Tensor) -> list[slice]:
    rows = max(1, (GPU_CHUNK_FLOATS if head.is_cuda else CHUNK_FLOATS) // len(head))
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
