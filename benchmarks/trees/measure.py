"""How long a pass takes, and how much memory."""

import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clawexp.model import tree_pass
from clawexp.model.decoder import Policy
from clawexp.model.tree_pass import Mode, tree_backward
from trees.models import random_policy
from trees.workloads import Arm, packed, thinned, workloads


@dataclass(frozen=True)
class Machine:
    """What passes run on."""

    device: str
    threads: int

    def policy(self, name: str) -> Policy:
        torch.set_num_threads(self.threads)
        policy = random_policy(name)
        return policy.bfloat16().cuda() if self.device == "cuda" else policy

    def now(self) -> float:
        """Seconds: of CPU where one thread computes, so that other programs count less; else of the clock."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.process_time() if self.device == "cpu" and self.threads == 1 else time.perf_counter()


def backward(policy: Policy, arm: Arm, mode: Mode = "chain") -> None:
    """One forward and backward pass; its gradient is added to what lies there, as a micro-batch's."""
    weights = arm.weights()

    def token_loss(logprobs: Tensor, which: Tensor) -> Tensor:
        return -(weights[which] * logprobs).sum()

    tree_backward(policy, arm.tokens, arm.targets, token_loss, 1.0, mode)


def seconds(machine: Machine, policy: Policy, arm: Arm) -> float:
    """Of one pass; on a GPU after one that is not counted, which compiles."""
    if machine.device == "cuda":
        backward(policy, arm)
    policy.zero_grad()
    start = machine.now()
    backward(policy, arm)
    return machine.now() - start


def gradient(policy: Policy) -> Tensor:
    """Of the last pass, in one row."""
    return torch.cat([weight.grad.flatten().float() for weight in policy.parameters() if weight.grad is not None])


def peak_mb(machine: Machine, model: str, turns: int, shape: str, kind: str) -> float:
    """Of one pass in a process of its own, beyond weights and gradients; see `_peak_mb` for `kind`."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_mb, (machine, model, turns, shape, kind))


def _peak_mb(machine: Machine, model: str, turns: int, shape: str, kind: str) -> float:
    """`tree`: whole, in one graph. `flat`: as many tokens of calls, in one graph. `dfs`: the tree depth first."""
    policy = machine.policy(model)
    workload = next(each for each in workloads(turns) if each.name == shape)
    tree = workload.tree()
    arm = packed(thinned(workload.calls(), tree.num_tokens)) if kind == "flat" else tree
    backward(policy, packed([((1, 2, 3), [1, 2])]))  # gradients lie there, kernels are loaded
    if kind != "dfs":
        tree_pass.PACK_TOKENS = 1 << 30
    before = _reset_peak(machine)
    backward(policy, arm, "dfs" if kind == "dfs" else "chain")
    return (_peak(machine) - before) / 1e6


def _reset_peak(machine: Machine) -> float:
    """Bytes in use now, from where the peak is counted."""
    if machine.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak(machine: Machine) -> float:
    return torch.cuda.max_memory_allocated() if machine.device == "cuda" else _status("VmHWM")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
