"""What a critic adds to a policy: hidden state -> value, in (0, 1), where rewards lie."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ValueHead(nn.Module):
    """One inner layer over the policy's final hidden state. Its first weights are the same each time; they say 0.5."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.inner = nn.Parameter(torch.randn(width, hidden, generator=generator) * hidden**-0.5)
        self.inner_bias = nn.Parameter(torch.zeros(width))
        self.outer = nn.Parameter(torch.zeros(width))
        self.outer_bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n]."""
        return torch.sigmoid(F.silu(F.linear(hidden, self.inner, self.inner_bias)) @ self.outer + self.outer_bias)
