"""Which credit learns best where a harness compacts and asks sub-agents? Four algorithms at one budget, several seeds.

    python benchmarks/credit.py --seeds 3 [--folder RUNS] [overrides]

The arms see the same tasks and make as many rollouts each:

- `tree-grpo`: `algo=grpo`, the rollout is the sample;
- `per-call`: `algo=grpo algo.normaliser=call algo.baseline=group_mean`, each call is a sample of its own;
- `segment-ppo`: `algo=ppo`, advantages by GAE within what a context holds;
- `r-minus-v`: `algo=ppo algo.critic.advantage=paper`, as described in ClawGym II.

Prints, for each arm, mean reward over all steps and over the last quarter with 95 % intervals over seeds (Student's t),
the difference from `r-minus-v` paired by seed, and what the harness did. A run that lies complete in the folder is not
made again.
"""

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import fmean

from learn import curve, interval, run

ARMS = {
    "tree-grpo": ["algo=grpo"],
    "per-call": ["algo=grpo", "algo.normaliser=call", "algo.baseline=group_mean"],
    "segment-ppo": ["algo=ppo"],
    "r-minus-v": ["algo=ppo", "algo.critic.advantage=paper"],
}
HARNESS = [
    "model.context=760",
    "harness.builtin.compact_at=0.45",
    "harness.builtin.tools=[read,write,ls,spawn]",
    "num_tasks=4",
    "group_size=8",
    "steps=14",
    "eval.num_tasks=0",
    "logger=[jsonl]",
]
COUNTS = ("compaction", "subagent", "retry", "rewrite")


def records_of(folder: Path, seed: int, overrides: list[str]) -> list[dict]:
    """Of a run that is complete, goes on, or is made now."""
    done, asked = folder / "done", json.dumps(overrides)
    if done.exists():
        if done.read_text() != asked:
            raise SystemExit(f"{folder} holds a run with {done.read_text()}, not {asked}. Give another --folder.")
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    begun = [f"resume='{folder}'"] if (folder / "metrics.jsonl").exists() else []
    records = run(seed, [*overrides, *begun], folder)
    done.write_text(asked)
    return records


def told(arm: str, seed: int, records: list[dict], seconds: float) -> str:
    rewards = curve(records, "reward/mean")
    return f"{arm} seed {seed}, {seconds:.0f} s: " + " ".join(f"{reward:.2f}" for reward in rewards)


def happened(runs: list[list[dict]]) -> str:
    """What harnesses did in all runs of an arm."""
    calls = sum(sum(curve(records, "capture/calls")) for records in runs)
    counts = {
        name: sum(
            record["capture/calls"] * record.get(f"capture/forks_per_1k_calls/{name}", 0.0) / 1000
            for records in runs
            for record in records
            if "capture/calls" in record
        )
        for name in COUNTS
    }
    return f"{calls:.0f} calls, " + ", ".join(f"{name} {count:.0f}" for name, count in counts.items())


def last_quarter(records: list[dict]) -> float:
    rewards = curve(records, "reward/mean")
    return fmean(rewards[-max(1, math.ceil(len(rewards) / 4)) :])


def summary(runs: dict[str, list[list[dict]]]) -> None:
    """A line for each arm."""
    last = {arm: [last_quarter(records) for records in found] for arm, found in runs.items()}
    for arm, found in runs.items():
        whole = [fmean(curve(records, "reward/mean")) for records in found]
        beside = [ours - theirs for ours, theirs in zip(last[arm], last["r-minus-v"], strict=True)]
        print(f"{arm}: reward over all steps {interval(whole)}, last quarter {interval(last[arm])}, ", end="")
        print(f"beside r-minus-v {interval(beside)}" if arm != "r-minus-v" else "the baseline")
        print(f"  {happened(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, 11))
    parser.add_argument("--folder", type=Path, help="keep the runs here, and take those that are there")
    given, overrides = parser.parse_known_args()
    root = given.folder or Path(tempfile.mkdtemp(prefix="clawexp-credit-"))
    runs: dict[str, list[list[dict]]] = {arm: [] for arm in ARMS}
    for seed in range(given.seeds):
        for arm, algo in ARMS.items():
            begin = time.monotonic()
            records = records_of(root / f"{arm}-{seed}", seed, [*HARNESS, *algo, *overrides])
            runs[arm].append(records)
            print(told(arm, seed, records, time.monotonic() - begin), flush=True)
    summary(runs)
    print(f"runs are in {root}")


if __name__ == "__main__":
    main()
