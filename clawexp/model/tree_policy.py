"""What learner and passes over trees ask of a policy, whoever computes its layers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from clawexp.model.checkpoint import Shape

See = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Number of a layer, its queries [N, H, D], keys [N, G, D] and values [N, G, D] -> what the queries saw, [N, H, D]."""
Route = Callable[[int, Tensor], Tensor]
"""Number of a layer and the experts that its router would choose, int64 [N, k] -> those to use."""


class TreePolicy(nn.Module, ABC):
    """A causal language model with attention as a callback, and a head that is one matrix."""

    shape: Shape
    embedding: Tensor
    """[V, hidden]; of the type and on the device of all else."""
    file = "model.safetensors"
    """What `take` takes back of what `save` wrote."""

    @property
    @abstractmethod
    def head(self) -> Tensor:
        """[V, hidden]; logits are the states times this."""

    @abstractmethod
    def states(
        self, ids: Tensor, position: Tensor, see: See, checkpointing: bool, route: Route | None = None
    ) -> Tensor:
        """Tokens [N] at depths [N] -> their final hidden states [N, hidden].

        With `checkpointing`, `see` and `route` are called once more for each layer in the backward pass. `route` is
        given to policies whose shape has experts alone; without it their routers decide.
        """

    @abstractmethod
    def take(self, weights: dict[str, Tensor]) -> None:
        """Copy weights, by the names in `file`, in place. Raises ConfigError, and changes nothing, if they misfit."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write `model.safetensors` and `config.json`, and `file` where that is another, each whole or not at all."""
