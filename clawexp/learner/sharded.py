"""Ranks that share a policy by FSDP2: each keeps a shard of its weights, gradients and the optimiser's state."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate

from clawexp.learner.ranks import balanced
from clawexp.model.tree_policy import TreePolicy
from clawexp.whole_folder import partial_folder, whole_folder

SHARDS = "optimiser"
PARTS_PER_RANK = 4
"""A batch is passed in so many parts at least, so that they can be balanced."""


class Sharded:
    """One of several ranks of this machine."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Path, device: str) -> None:
        """Meet the others by the file `rendezvous`. NCCL between GPUs, gloo between CPUs."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=num_ranks)
        self.rank, self.num_ranks = rank, num_ranks
        self.mesh = init_device_mesh(device, (num_ranks,))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def shard(self, policy: TreePolicy) -> None:
        fully_shard(policy, mesh=self.mesh)

    def tokens_per_pass(self, token_budget: int, num_tokens: int) -> int:
        return min(token_budget, max(1, num_tokens // (PARTS_PER_RANK * self.num_ranks)))

    def share(self, sizes: Sequence[int]) -> list[int]:
        return balanced(sizes, self.num_ranks)[self.rank]

    @contextmanager
    def whole(self, policy: TreePolicy, *, gradients: bool = False) -> Iterator[None]:
        """All weights are gathered before a pass and let go after it, and gradients are summed and scattered once.

        FSDP's own hooks would gather layer by layer, and scatter in the backward pass of each. Collective calls must be
        the same on every rank, but the number of forward and backward passes is that of a rank's own trees and, depth
        first, of their branches. So ranks hold all weights and gradients during a pass, and shards of them, and of the
        optimiser's state, at all other times.
        """
        module = cast("FSDPModule", policy)
        module.unshard()
        try:
            yield
        finally:
            found = [weight.grad for weight in policy.parameters()]
            for weight in policy.parameters():
                weight.grad = None
            module.reshard()
        if gradients:
            for weight, grad in zip(policy.parameters(), found, strict=True):
                if weight.requires_grad:
                    weight.grad = self._scattered(cast("DTensor", weight), grad)

    def _scattered(self, weight: DTensor, grad: Tensor | None) -> DTensor:
        """This rank's shard of the sum of all ranks' gradients; None of a rank that had no tree."""
        if grad is None:
            grad = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
        partial = DTensor.from_local(grad, self.mesh, [Partial("sum")], run_check=False)
        return partial.redistribute(placements=weight.placements)

    def add_up(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            there = tensor.to(self.mesh.device_type)
            dist.all_reduce(there)
            tensor.copy_(there)

    def take(self, policy: TreePolicy, weights: dict[str, Tensor]) -> None:
        with self.whole(policy):
            policy.take(weights)
            taken = [weight.detach().clone() for weight in policy.parameters()]
        with torch.no_grad():
            for mine, theirs in zip(policy.parameters(), taken, strict=True):
                sharded = cast("DTensor", mine)
                replicated = DTensor.from_local(theirs, self.mesh, [Replicate()], run_check=False)
                sharded.copy_(replicated.redistribute(placements=sharded.placements))

    def norm(self, found: Tensor) -> float:
        return (found.full_tensor() if isinstance(found, DTensor) else found).item()

    @contextmanager
    def whole_folder(self, folder: Path) -> Iterator[Path]:
        if not self.first:
            dist.barrier()
            yield partial_folder(folder)
            dist.barrier()
            return
        with whole_folder(folder) as partial:
            dist.barrier()
            yield partial
            dist.barrier()

    def optimiser_state(self, policy: TreePolicy, optimiser: torch.optim.Optimizer, folder: Path) -> None:
        """Written by `torch.distributed.checkpoint`, each rank its shard; another number of ranks can read it."""
        named = {
            f"{name}/{key}": value
            for name, weight in policy.named_parameters()
            for key, value in optimiser.state.get(weight, {}).items()
        }
        save(named, storage_writer=FileSystemWriter(folder / SHARDS))

    def take_optimiser_state(
        self, policy: TreePolicy, optimiser: torch.optim.Optimizer, state: dict[str, Any] | None, folder: Path
    ) -> None:
        if state is not None:
            raise ValueError("it was written with learner.num_ranks=1")
        reader = FileSystemReader(folder / SHARDS)
        weights = dict(policy.named_parameters())
        named: dict[str, Any] = {}
        for name, stored in reader.read_metadata().state_dict_metadata.items():
            weight = weights[name.rpartition("/")[0]]
            assert isinstance(stored, TensorStorageMetadata)
            whole = stored.size == weight.shape
            named[name] = torch.zeros_like(weight) if whole else torch.zeros(stored.size)  # moments, or their count
        load(named, storage_reader=reader)
        for name, value in named.items():
            weight, _, key = name.rpartition("/")
            optimiser.state[weights[weight]][key] = value
