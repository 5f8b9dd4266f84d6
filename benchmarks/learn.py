"""Does it learn? Runs the experiment once per seed and prints the rise in reward with its 95 % interval.

    python benchmarks/learn.py --seeds 3 [overrides]

The rise is the mean reward of the last quarter of steps minus that of the first quarter, of the same run. Seeds are the
samples; the interval is Student's t over them. Held-out scores are those before the first and after the last step.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev

T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Two-sided 95 % quantiles of Student's t, by degrees of freedom."""


def run(seed: int, overrides: list[str], folder: Path) -> list[dict]:
    """One experiment; its metrics, one record a line."""
    command = [sys.executable, "-m", "clawexp", f"seed={seed}", f"hydra.run.dir='{folder}'", *overrides]
    subprocess.run(command, check=True)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def curve(records: list[dict], name: str) -> list[float]:
    return [record[name] for record in records if record.get(name) is not None]


def interval(samples: list[float]) -> str:
    """`0.412 [0.371, 0.453]`"""
    mean = fmean(samples)
    if len(samples) < 2:
        return f"{mean:.3f} (one seed: no interval)"
    half = T95[len(samples) - 1] * stdev(samples) / math.sqrt(len(samples))
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, 11))
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    given, overrides = parser.parse_known_args()
    root = given.folder or Path(tempfile.mkdtemp(prefix="clawexp-learn-"))
    rises, held_out, seconds = [], [], []
    for seed in range(given.seeds):
        begin = time.monotonic()
        records = run(seed, overrides, root / f"seed-{seed}")
        seconds.append(time.monotonic() - begin)
        rewards, scores = curve(records, "reward/mean"), curve(records, "eval/score")
        quarter = max(1, len(rewards) // 4)
        rises.append(fmean(rewards[-quarter:]) - fmean(rewards[:quarter]))
        line = f"seed {seed}: reward {fmean(rewards[:quarter]):.3f} -> {fmean(rewards[-quarter:]):.3f}"
        if len(scores) > 1:
            held_out.append(scores[-1] - scores[0])
            line += f", held-out score {scores[0]:.3f} -> {scores[-1]:.3f}"
        print(f"{line}, {len(rewards)} steps, {seconds[-1]:.0f} s", flush=True)
        print("  " + " ".join(f"{reward:.2f}" for reward in rewards), flush=True)
    print(f"rise in mean reward, last quarter - first quarter: {interval(rises)}")
    if held_out:
        print(f"rise in held-out score, after - before: {interval(held_out)}")
    print(f"runs are in {root}")


if __name__ == "__main__":
    main()
