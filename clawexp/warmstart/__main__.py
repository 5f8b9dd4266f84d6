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
from clawexp.protocols import Harness, Runtime
from clawexp.taskset.workbench import Workbench
from clawexp.warmstart.demonstration import Demonstration, Text, demonstrate, drill, letter_pieces, scrambled, solution
from clawexp.warmstart.fit import Fit, fit, tiny_config
from clawexp.warmstart.initial import initialise
from clawexp.warmstart.record import record
from clawexp.warmstart.rehearsal import rehearse
from clawexp.warmstart.sketch import Sketch, read_sketches, write_sketches
from clawexp.warmstart.tokenizer import SPECIAL, library_text, train_tokenizer, write_tokenizer

VOCAB = 4096
FAMILIES = ("lookup", "copy", "pick", "make")
NUMBERS = {"builtin": 32, "pi": 12, "openclaw": 8}
"""Demonstrations a step; the third-party harnesses' prompts are long, and computed once a step."""
FOREIGN_EVERY = 2
"""Steps between those in which third-party harnesses speak."""
REHEARSED, DRILLED, RIGHT = 0.03, 0.6, 0.85
"""Shares of all steps until which there are rehearsals alone, then mainly drills, then demonstrations that are right;
after that most of them are wrong."""
REHEARSALS, DRILLS, FEW = 40, 64, 4
"""Rehearsals a step, drills a step, and demonstrations beside the drills."""


class Demonstrations:
    """An endless, seeded source of demonstrations."""

    def __init__(self, sketches: Sequence[Sketch], folder: Path, right: float, steps: int, seed: int) -> None:
        self.sketches = {sketch.harness: sketch for sketch in sketches}
        self.tokenizer = Tokenizer(folder)
        self.start = self.tokenizer.convert_tokens_to_ids("<|im_start|>") or 0
        self.rendering = Qwen3Rendering(self.tokenizer)
        self.pieces = letter_pieces(self.tokenizer, VOCAB)
        self.bench = Workbench(level=1, families=FAMILIES, long_tokens=1)
        self.right, self.steps, self.seed = right, steps, seed

    def groups(self, step: int) -> list[list[Demonstration]]:
        """What a step teaches, a list for each tree."""
        rng = random.Random(f"{self.seed}/{step}")
        done = step / self.steps
        if done < REHEARSED:
            return [[rehearse(rng, range(len(SPECIAL), VOCAB), self.start) for _ in range(REHEARSALS)]]
        if done < DRILLED:
            texts = self.texts(DRILLS, step, 1.0, rng)
            return [
                [drill(text, self.tokenizer, self.start) for text in texts],
                self.led("builtin", FEW, step, 1.0, rng),
            ]
        right = 1.0 if done < RIGHT else self.right
        names = NUMBERS if step % FOREIGN_EVERY == 0 else ["builtin"]
        return [self.led(name, NUMBERS[name], step, right, rng) for name in names]

    def texts(self, number: int, step: int, right: float, rng: random.Random) -> list[Text]:
        tasks = self.bench.train(step, number, rng.getrandbits(32))
        return [scrambled(solution(task, rng, right), rng, self.pieces) for task in tasks]

    def led(self, harness: str, number: int, step: int, right: float, rng: random.Random) -> list[Demonstration]:
        """Conversations as one harness leads them."""
        today = self.sketches[harness].varied(rng)
        texts = self.texts(number, step, right, rng)
        return [demonstrate(text, today, self.rendering, self.tokenizer) for text in texts]


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
    parser.add_argument("--steps", type=int, default=1100)
    parser.add_argument("--lr", type=float, default=3e-3)
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
    initialise(policy, given.seed, source.start)
    plan = Fit(steps=given.steps, lr=given.lr, warmup=50)
    fit(policy, source.groups, plan, lambda: policy.save(given.folder))


if __name__ == "__main__":
    main()
