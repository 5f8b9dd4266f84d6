"""The processes that share an update, as a learner needs them; and the one that shares it with nobody.

Each rank holds every batch whole, passes only its own parts through the model, and learns from the others what they
found. So all that is decided from a batch (credit, rejection, a critic's values, metrics) is the same on every rank.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from clawexp.model.tree_policy import TreePolicy
from clawexp.whole_folder import whole_folder


class Ranks(Protocol):
    """All but `share` and `tokens_per_pass` are collective: every rank calls them, in the same order."""

    @property
    def first(self) -> bool:
        """Whether this one writes what all have."""
        ...

    def shard(self, policy: TreePolicy) -> None:
        """Take a policy whole, keep this rank's share."""
        ...

    def tokens_per_pass(self, token_budget: int, num_tokens: int) -> int:
        """At most so many of a batch's tokens go through the model at once."""
        ...

    def share(self, sizes: Sequence[int]) -> list[int]:
        """Which of the parts of a batch, of these sizes, are this rank's."""
        ...

    def whole(self, policy: TreePolicy, *, gradients: bool = False) -> AbstractContextManager[None]:
        """Its parameters can be used meanwhile. `gradients`: what came to them is summed over ranks at the end."""
        ...

    def add_up(self, *tensors: Tensor) -> None:
        """Each becomes its sum over ranks, in place."""
        ...

    def take(self, policy: TreePolicy, weights: dict[str, Tensor]) -> None:
        """As `TreePolicy.take`."""
        ...

    def norm(self, found: Tensor) -> float:
        """The whole of a norm of sharded gradients."""
        ...

    def whole_folder(self, folder: Path) -> AbstractContextManager[Path]:
        """As `clawexp.whole_folder`, to be filled by all ranks."""
        ...

    def optimiser_state(
        self, policy: TreePolicy, optimiser: torch.optim.Optimizer, folder: Path
    ) -> dict[str, Any] | None:
        """What is kept of it beside what is written to `folder`."""
        ...

    def take_optimiser_state(
        self, policy: TreePolicy, optimiser: torch.optim.Optimizer, state: dict[str, Any] | None, folder: Path
    ) -> None:
        """Go on from it, to the bit. Raises ValueError, KeyError or RuntimeError where it does not fit."""
        ...


class Alone:
    """One process."""

    first = True

    def shard(self, policy: TreePolicy) -> None:
        """All of it is this rank's."""

    def tokens_per_pass(self, token_budget: int, num_tokens: int) -> int:
        return token_budget

    def share(self, sizes: Sequence[int]) -> list[int]:
        return list(range(len(sizes)))

    @contextmanager
    def whole(self, policy: TreePolicy, *, gradients: bool = False) -> Iterator[None]:
        yield

    def add_up(self, *tensors: Tensor) -> None:
        """They are whole."""

    def take(self, policy: TreePolicy, weights: dict[str, Tensor]) -> None:
        policy.take(weights)

    def norm(self, found: Tensor) -> float:
        return found.item()

    def whole_folder(self, folder: Path) -> AbstractContextManager[Path]:
        return whole_folder(folder)

    def optimiser_state(self, policy: TreePolicy, optimiser: torch.optim.Optimizer, folder: Path) -> dict[str, Any]:
        return optimiser.state_dict()

    def take_optimiser_state(
        self, policy: TreePolicy, optimiser: torch.optim.Optimizer, state: dict[str, Any] | None, folder: Path
    ) -> None:
        if state is None:
            raise ValueError("it was written with another learner.num_ranks than 1")
        optimiser.load_state_dict(state)


def balanced(sizes: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Indices of parts for each rank, so that the ranks' sums are near one another: the largest parts first, each to
    the rank that has least. The first rank has one if any has.
    """
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += sizes[index]
    return [sorted(share) for share in shares]
