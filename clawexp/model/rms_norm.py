"""RMSNorm with its own backward pass: half the passes over memory that autograd would make of it on a CPU."""

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; the shape of `weight` ends that of `x`.

    Half precision is computed in float32, as the released models were.
    """
    if x.dtype.itemsize < torch.float32.itemsize:
        return rms_norm(x.float(), weight.float(), eps).to(x.dtype)
    if torch.is_grad_enabled():
        return _RmsNorm.apply(x, weight, eps)  # pyright: ignore[reportReturnType]
    return (x * _inverse_rms(x, eps)).mul_(weight)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        normal = x * inverse
        along = grads[0] * normal
        d_weight = along.reshape(-1, *weight.shape).sum(0)
        share = (along * weight).sum(-1, keepdim=True).div_(x.shape[-1])
        return (grads[0] * weight).sub_(normal.mul_(share)).mul_(inverse), d_weight, None
