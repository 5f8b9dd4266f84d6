"""What sharing saves: forward and backward on trees, beside the same calls as sequences of their own.

    python benchmarks/tree.py
    python benchmarks/tree.py --trl /tmp/venv-trl
    python benchmarks/tree.py --models 5m --shapes chain group --threads 2
    python benchmarks/tree.py --device cuda --models 0.6b

TRL runs in an environment of its own, and is left out where none is given:

    python -m venv /tmp/venv-trl && /tmp/venv-trl/bin/pip install trl==1.16.0

The arms hold the same sampled tokens with the same weights, computed by the same kernels, packed without padding:
`tree` holds every token once; `calls` is a sequence for each model call; `paths` one for each chain of calls that only
append. Shapes, with T turns: `star`, 12 answers to one prompt of 900 tokens; `chain`, one rollout of T calls; `group`,
8 rollouts of 3 calls after a prompt of 2,000 tokens; `compaction`, 2 rollouts that go on from a summary after every
fourth call; `apart`, 6 rollouts of 4 calls that share 50 tokens. Models are decoders of the Qwen3 shape with random
weights.

`POR`: the share of the flat arm's tokens that the tree does not compute. `tokens`: the bound 1 / (1 - POR). `FLOPs`:
the bound by operations, which counts attention, and the head at sampled tokens alone. A flat arm beyond `--cap` tokens
is measured on sequences of all lengths up to there, and scaled by its operations (marked ~); where nothing was scaled,
the gradients of both arms are compared. Paths that are the calls (`star`) or the tree (`chain`) are not measured again.

Seconds are those of the CPU with one thread, else of the clock. On a GPU, weights are bfloat16 and attention is
FlexAttention's. Memory is the peak of one pass in a process of its own beyond what it began with, weights and
gradients: tree and calls with equally many tokens, each in one graph, and the tree depth first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from clawexp.model.decoder import Policy
from trees.measure import Machine, gradient, peak_mb, seconds
from trees.models import SIZES, flops
from trees.workloads import Workload, packed, thinned, workloads

SHAPES = ("star", "chain", "group", "compaction", "apart")
TURNS = {"5m": 40, "30m": 30, "135m": 10, "0.6b": 40}
CAP = {"5m": 15_000, "30m": 6_000, "135m": 3_000, "0.6b": 1 << 40}
ROUNDS = {"5m": 1, "30m": 1, "135m": 1, "0.6b": 3}
WARM_UP = 500
"""Tokens before anything counts: memory is mapped, kernels are loaded."""
TRL = Path(__file__).parent / "trees" / "trl_loss.py"


@dataclass(frozen=True)
class Row:
    """One flat arm beside the tree."""

    model: str
    shape: str
    arm: str
    tree_tokens: int
    flat_tokens: int
    bound: float
    """By operations."""
    speed_up: float
    error: float | None
    """L2 distance of the gradients, relative; None where a part was measured and scaled."""

    @property
    def por(self) -> float:
        return 1 - self.tree_tokens / self.flat_tokens

    def __str__(self) -> str:
        mark, error = ("~", "") if self.error is None else (" ", f"{self.error:10.1e}")
        return (
            f"{self.model:5} {self.shape:10} {self.arm:6} {self.tree_tokens:7d} {self.flat_tokens:8d} {self.por:6.2f} "
            f"{self.flat_tokens / self.tree_tokens:7.2f} {self.bound:7.2f} {self.speed_up:8.2f}{mark}"
            f"{self.speed_up / self.bound:7.0%} {error}"
        )


def measure(machine: Machine, policy: Policy, model: str, workload: Workload, options: argparse.Namespace) -> list[Row]:
    """Round after round, tree and flat arms in turn."""
    cap, tree = options.cap or CAP[model], workload.tree()
    arms = {"calls": packed(workload.calls()), "paths": packed(workload.paths())}
    if any(torch.equal(arms["paths"].tokens.input_ids, arm.tokens.input_ids) for arm in (arms["calls"], tree)):
        del arms["paths"]
    some = {"calls": packed(thinned(workload.calls(), cap)), "paths": packed(thinned(workload.paths(), cap))}
    spent = {name: [0.0] for name in ("tree", *arms)}
    errors: dict[str, float | None] = {}
    for _ in range(options.rounds or ROUNDS[model]):
        spent["tree"].append(seconds(machine, policy, tree))
        want = gradient(policy)
        for name, whole in arms.items():
            spent[name].append(seconds(machine, policy, some[name]))
            same = some[name].num_tokens == whole.num_tokens
            errors[name] = float((gradient(policy) - want).norm() / want.norm()) if same else None
    rows = []
    for name, whole in arms.items():
        work = [flops(policy, arm) for arm in (whole, some[name], tree)]
        speed_up = sum(spent[name]) * work[0] / work[1] / sum(spent["tree"])
        sizes = tree.num_tokens, whole.num_tokens
        rows.append(Row(model, workload.name, name, *sizes, work[0] / work[2], speed_up, errors[name]))
    return rows


def trl_line(venv: Path, machine: Machine, policy: Policy, workload: Workload, cap: int) -> str:
    """TRL's loss on the calls, beside the tree and beside our calls."""
    calls = thinned(workload.calls(), cap)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy.save(folder)
        (folder / "samples.json").write_text(json.dumps([[ids, places[0]] for ids, places in calls]))
        command = [str(venv / "bin/python"), str(TRL), name, str(folder / "samples.json"), str(machine.threads)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"TRL failed in {venv}:\n{done.stderr[-2000:]}")
    theirs = json.loads(done.stdout.splitlines()[-1])
    some, whole, tree = packed(calls), packed(workload.calls()), workload.tree()
    flat, shared = seconds(machine, policy, some), seconds(machine, policy, tree)
    speed_up = theirs["seconds"] * flops(policy, whole) / flops(policy, some) / shared
    return (
        f"TRL {theirs['version']}: {theirs['seconds']:.1f} s for {some.num_tokens} tokens of calls, ours "
        f"{flat:.1f} s; for all {whole.num_tokens} the tree is {speed_up:.1f} times as fast"
    )


def print_verdict(rows: list[Row]) -> None:
    """The figures that the bounds are held to."""
    for model in dict.fromkeys(row.model for row in rows):
        shares = [row.speed_up / row.bound for row in rows if row.model == model and row.por >= 0.8]
        apart = [row.speed_up for row in rows if row.model == model and row.arm == "paths" and row.por < 0.1]
        if shares:
            print(f"{model}: at POR >= 0.8, {min(shares):.0%} to {max(shares):.0%} of the bound by operations")
        if apart:
            print(f"{model}: at POR < 0.1, {min(apart):.2f} to {max(apart):.2f} times as fast as paths")


def measure_speed(options: argparse.Namespace, machine: Machine) -> None:
    """The table, then what TRL takes."""
    print("model shape      beside    tree     flat    POR  tokens   FLOPs measured   share  gradients", flush=True)
    rows: list[Row] = []
    lines: list[str] = []
    for model in options.models:
        policy, cap = machine.policy(model), options.cap or CAP[model]
        seconds(machine, policy, packed([(tuple(range(WARM_UP)), [1])]))
        for workload in _chosen(options, model):
            for row in measure(machine, policy, model, workload, options):
                print(row, flush=True)
                rows.append(row)
            if options.trl:
                lines.append(f"{model} {workload.name}: {trl_line(options.trl, machine, policy, workload, cap // 4)}")
                print(lines[-1], flush=True)
    print_verdict(rows)


def measure_memory(options: argparse.Namespace, machine: Machine) -> None:
    """MB, and the tree's share of what as many tokens of calls take."""
    print("model shape       tokens  tree, MB  calls, MB  ratio  depth first, MB", flush=True)
    for model in options.memory_models:
        for workload in _chosen(options, model):
            kinds = ("tree", "flat", "dfs") if machine.device == "cpu" else ("tree", "flat")
            peaks = [peak_mb(machine, model, options.turns or TURNS[model], workload.name, kind) for kind in kinds]
            row = f"{peaks[0]:9.0f} {peaks[1]:10.0f} {peaks[0] / peaks[1]:6.2f}"
            print(f"{model:5} {workload.name:10} {workload.tree().num_tokens:7d} {row} {peaks[-1]:16.0f}", flush=True)


def _chosen(options: argparse.Namespace, model: str) -> list[Workload]:
    return [each for each in workloads(options.turns or TURNS[model]) if each.name in options.shapes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["5m", "30m", "135m"])
    parser.add_argument(
        "--memory-models", nargs="+", choices=SIZES, help="those of --models but for 135m, if not given"
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--parts", nargs="+", choices=("speed", "memory"), default=("speed", "memory"))
    parser.add_argument("--turns", type=int, help="of the longest rollout; by model unless given")
    parser.add_argument("--cap", type=int, help="tokens of a flat arm that are measured; by model unless given")
    parser.add_argument("--rounds", type=int, help="in which every arm is measured once; by model unless given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--trl", type=Path, metavar="VENV")
    options = parser.parse_args()
    options.memory_models = options.memory_models or [model for model in options.models if model != "135m"]
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: torch sees no GPU")
    machine = Machine(options.device, options.threads)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} threads, float32"
    print(f"torch {torch.__version__}, {where}, load average {os.getloadavg()[0]:.1f} at the start")
    if "speed" in options.parts:
        measure_speed(options, machine)
    if "memory" in options.parts:
        measure_memory(options, machine)
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
