"""A sparse feed-forward layer: a router sends each token to a few of many experts, as in Qwen3-MoE.

Which experts a token goes to is a choice that small differences can turn over. So whoever computes it may be told the
choice of another pass (`Choose`): what the chosen experts weigh is this router's own then, and learns.

Shapes: N tokens, E experts, k of them chosen, I intermediate.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clawexp.model.checkpoint import ExpertShape

Choose = Callable[[Tensor], Tensor]
"""The experts that the router would choose, int64 [N, k] -> those to use."""


class Experts(nn.Module):
    """Router and experts of one layer, each expert a gated product."""

    def __init__(self, shape: ExpertShape, hidden: int) -> None:
        super().__init__()
        self.shape = shape
        self.router = _parameter(shape.number, hidden)
        self.gate_up = _parameter(shape.number, 2 * shape.intermediate, hidden)
        self.down = _parameter(shape.number, hidden, shape.intermediate)
        self.alone = False
        """Compute each token by itself, so that its bits do not depend on which tokens share its experts."""

    def forward(self, x: Tensor, choose: Choose | None) -> Tensor:
        """[N, hidden] -> [N, hidden]."""
        logits = F.linear(x, self.router)
        chances = logits.softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32))
        choice = chances.detach().topk(self.shape.chosen).indices
        if choose is not None:
            choice = choose(choice)
        weight = chances.gather(1, choice)
        if self.shape.normalised:
            weight = weight / weight.sum(-1, keepdim=True)
        weight = weight.to(x.dtype)
        if not self.alone:
            return self._mixed(x, choice, weight)
        rows = zip(x.split(1), choice.split(1), weight.split(1), strict=True)
        return torch.cat([self._mixed(*row) for row in rows])

    def _mixed(self, x: Tensor, choice: Tensor, weight: Tensor) -> Tensor:
        """Tokens in the order of their experts, each expert once, and back."""
        expert, order = choice.flatten().sort(stable=True)
        counts = expert.bincount(minlength=self.shape.number).tolist()
        parts = x[order // self.shape.chosen].split(counts)
        # Taken apart once: the gradient of indexing would be as large as all experts for each of them.
        experts = zip(parts, self.gate_up.unbind(), self.down.unbind(), strict=True)
        said = torch.cat([_gated(part, gate_up, down) for part, gate_up, down in experts if len(part)])
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return (said[back].unflatten(0, choice.shape) * weight[..., None]).sum(1)

    def parts(self) -> dict[str, Tensor]:
        """The weights by Hugging Face's names, as views."""
        parts: dict[str, Tensor] = {"gate": self.router}
        for number, (gate_up, down) in enumerate(zip(self.gate_up.unbind(), self.down.unbind(), strict=True)):
            gate, up = gate_up.chunk(2)
            parts |= {f"experts.{number}.{name}_proj": part for name, part in (("gate", gate), ("up", up))}
            parts[f"experts.{number}.down_proj"] = down
        return parts


def _gated(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)


def _parameter(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size, dtype=torch.float32))
