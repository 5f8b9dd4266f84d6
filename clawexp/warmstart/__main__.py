"""Make the tiny model: `python -m clawexp.warmstart FOLDER [--steps N] ...`."""

import argparse
import asyncio
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from hydra.utils import instantiate

from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.commands.compose import composed
from clawexp.model.decoder import Policy
from clawexp.spec import Harness, Runtime
from clawexp.taskset.workbench import Workbench
from clawexp.warmstart.demonstration import Demonstration, demonstrate, letter_pieces, scrambled, solution
from clawexp.warmstart.fit import Fit, fit, tiny_config
from clawexp.warmstart.initial import initialise
from clawexp.warmstart.record import record
from clawexp.warmstart.rehearsal import rehearse
from clawexp.warmstart.sketch import Sketch, read_sketches, write_sketches
from clawexp.warmstart.tokenizer import SPECIAL, library_text, train_tokenizer, write_tokenizer

VOCAB = 4096
FAMILIES = ("lookup", "copy", "pick", "make")
NUMBERS = {"builtin": 32, "pi": 12, "openclaw": 8}
"""Demonstrations a step; the others' prompts are long, and computed once a step."""
FOREIGN_EVERY, FOREIGN_FROM = 3, 0.6
"""Steps between those in which third-party harnesses speak, and the share of all steps before the first: their prompts
are long, and what matters is learned from short ones."""
REHEARSAL_STEPS = 150
"""Steps of rehearsal alone, at the beginning; it goes on beside the demonstrations."""
BLURRED = 0.75
"""Of all steps, the share after which demonstrations are wrong more often than not."""
REHEARSALS = (40, 8)
"""Sequences a step, at the beginning and later."""


class Demonstrations:
    """An endless, seeded source of demonstrations."""

    def __init__(self, sketches: Sequence[Sketch], folder: Path, right: float, steps: int, seed: int) -> None:
        self.sketches = sketches
        self.tokenizer = Tokenizer(folder)
        self.rendering = Qwen3Rendering(self.tokenizer)
        self.pieces = letter_pieces(self.tokenizer, VOCAB)
        self.bench = Workbench(level=1, families=FAMILIES, long_tokens=1)
        self.right, self.seed = right, seed
        self.blurred_from, self.foreign_from = round(BLURRED * steps), round(FOREIGN_FROM * steps)

    def groups(self, step: int) -> list[list[Demonstration]]:
        rng = random.Random(f"{self.seed}/{step}")
        rehearsing = step < REHEARSAL_STEPS
        number = REHEARSALS[0] if rehearsing else REHEARSALS[1]
        start = self.tokenizer.convert_tokens_to_ids("<|im_start|>") or 0
        rehearsals = [rehearse(rng, range(len(SPECIAL), VOCAB), start) for _ in range(number)]
        foreign = step >= self.foreign_from and step % FOREIGN_EVERY == 0
        if rehearsing:
            return [rehearsals]
        return [rehearsals] + [
            self.group(sketch, NUMBERS[sketch.harness], step, rng)
            for sketch in self.sketches
            if sketch.harness == "builtin" or foreign
        ]

    def group(self, sketch: Sketch, number: int, step: int, rng: random.Random) -> list[Demonstration]:
        today = sketch.varied(rng)
        tasks = self.bench.train(step, number, self.seed + sum(map(ord, sketch.harness)))
        right = self.right if step >= self.blurred_from else 1.0
        texts = [scrambled(solution(task, rng, right), rng, self.pieces) for task in tasks]
        return [demonstrate(text, today, self.rendering, self.tokenizer, rng) for text in texts]


def corpus(sketches: Sequence[Sketch]) -> list[str]:
    """What the tokenizer is trained on: prompts of the size and shape that harnesses send, instructions, plain text."""
    prompts = [s.system + "\n" + s.user + "\n".join(json.dumps(tool) for tool in s.tools) for s in sketches]
    tasks = Workbench(level=1, families=FAMILIES, long_tokens=1).train(0, 2000, 7)
    talk = [task.instruction + json.dumps({"path": path}) for task in tasks for path in task.files]
    return [*prompts * 20, *talk, *library_text(2.0)]


def record_all(file: Path) -> list[Sketch]:
    """Run each harness once against the scripted model, as `conf/` has it; kept in `file` for another time."""
    sketches = []
    for name in NUMBERS:
        config = composed([f"harness={name}"])
        harness: Harness = instantiate(config.harness[name], _convert_="all")
        runtime: Runtime = instantiate(config.runtime, _convert_="all")
        if harness.prepared() is not None:
            harness.prepare()
        sketches.append(asyncio.run(record(name, harness, runtime)))
    write_sketches(file, sketches)
    return sketches


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m clawexp.warmstart", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sketches", type=Path, help="recorded before; otherwise the harnesses are run now")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--right", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.set_num_threads(given.threads)
    given.folder.mkdir(parents=True, exist_ok=True)
    sketches = read_sketches(given.sketches) if given.sketches else record_all(given.folder / "sketches.json")
    write_tokenizer(train_tokenizer(corpus(sketches), VOCAB), given.folder)
    source = Demonstrations(sketches, given.folder, given.right, given.steps, given.seed)
    config = tiny_config(VOCAB, source.tokenizer.eos_token_id or 0)
    (given.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    policy = Policy(config)
    initialise(policy, given.seed)
    plan = Fit(steps=given.steps, lr=given.lr, warmup=50)
    fit(policy, source.groups, plan, lambda: policy.save(given.folder))


if __name__ == "__main__":
    main()
