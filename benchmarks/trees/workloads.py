"""Groups of rollouts as harnesses make them, and the arms that a pass is measured on: tree, paths, calls.

Ids are drawn at random: what is not shared by construction is not shared. Arms hold the same sampled tokens with the
same weights in the loss, so their gradients agree.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clawexp.batch.pack import pack
from clawexp.model.tree_pass import TreeTokens
from clawexp.outcome import Outcome
from clawexp.records import Call, Rollout, Span
from clawexp.tree.forest import merge
from clawexp.tree.tree import grow

IDS = range(1, 4000)
"""Within every model's vocabulary."""
Ids = tuple[int, ...]
Turns = list[tuple[Ids, Ids]]
"""Prompt and answer of each call of one rollout."""


@dataclass(frozen=True)
class Arm:
    """What one pass computes."""

    tokens: TreeTokens
    targets: Tensor
    """Sampled tokens, int64 [n]."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens.input_ids)

    @property
    def num_pairs(self) -> int:
        """Of queries with the keys that they see."""
        return int(self.tokens.position.sum()) + self.num_tokens

    def weights(self) -> Tensor:
        """Of the targets in the loss, of both signs; the same for a token in every arm."""
        ids, depth = (column[self.targets].double() for column in (self.tokens.input_ids, self.tokens.position))
        return torch.cos(ids * 0.7 + depth).float()


@dataclass(frozen=True)
class Workload:
    """`Workload("star", [[(prompt, answer)], [(prompt, answer)]])`: two rollouts of one call each."""

    name: str
    rollouts: Sequence[Turns]

    def tree(self) -> Arm:
        """Everything once, as the learner has it."""
        trees = [grow(_rollout(str(number), turns)) for number, turns in enumerate(self.rollouts)]
        worth = {str(number): 1.0 for number in range(len(self.rollouts))}
        batch = pack([merge(trees)], worth)
        tokens = TreeTokens(batch["input_ids"], batch["position"], batch["parent"])
        return Arm(tokens, batch["decision"].nonzero().flatten())

    def calls(self) -> list[tuple[Ids, list[int]]]:
        """A sequence for each call, and where its targets lie in it."""
        pairs = [pair for turns in self.rollouts for pair in turns]
        return [(prompt + answer, list(range(len(prompt), len(prompt) + len(answer)))) for prompt, answer in pairs]

    def paths(self) -> list[tuple[Ids, list[int]]]:
        """A sequence for each chain of calls whose prompts begin with all that came before."""
        return [path for turns in self.rollouts for path in _merged(turns)]


def packed(sequences: Sequence[tuple[Ids, list[int]]]) -> Arm:
    """Sequences side by side, without padding."""
    lengths = [len(ids) for ids, _ in sequences]
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    position = torch.cat([torch.arange(length) for length in lengths])
    index = torch.arange(len(position))
    tokens = TreeTokens(
        torch.tensor([token for ids, _ in sequences for token in ids]),
        position,
        torch.where(position == 0, -1, index - 1),
    )
    targets = [start + place for start, (_, places) in zip(starts, sequences, strict=True) for place in places]
    return Arm(tokens, torch.tensor(targets))


def thinned(sequences: Sequence[tuple[Ids, list[int]]], most: int) -> list[tuple[Ids, list[int]]]:
    """Of all lengths alike: every n-th sequence, so that they hold at most about `most` tokens together."""
    ordered = sorted(sequences, key=lambda sequence: len(sequence[0]))
    total = sum(len(ids) for ids, _ in ordered)
    count = max(1, min(len(ordered), round(len(ordered) * most / total)))
    return [ordered[int((number + 0.5) * len(ordered) / count)] for number in range(count)]


def workloads(turns: int) -> Iterator[Workload]:
    """Of a size: the calls of the longest rollout."""
    draw = random.Random(0)

    def some(count: int) -> Ids:
        return tuple(draw.choices(IDS, k=count))

    def conversation(opening: Ids, count: int, observed: int, sampled: int) -> Turns:
        calls: Turns = []
        for _ in range(count):
            prompt = calls[-1][0] + calls[-1][1] + some(observed) if calls else opening
            calls.append((prompt, some(sampled)))
        return calls

    def compacted(system: Ids, count: int) -> Turns:
        """After every fourth call the harness goes on from a summary that the model wrote."""
        calls: Turns = []
        opening = system + some(60)
        while len(calls) < count:
            calls += conversation(opening, min(4, count - len(calls)), 60, 60)
            calls.append((calls[-1][0] + calls[-1][1] + some(20), some(80)))
            opening = system + calls[-1][1]
        return calls

    prompt = some(900)
    yield Workload("star", [conversation(prompt, 1, 0, 60) for _ in range(12)])
    yield Workload("chain", [conversation(some(300), turns, 30, 30)])
    shared = some(2000)
    yield Workload("group", [conversation(shared, 3, 40, 40) for _ in range(8)])
    system = some(400)
    yield Workload("compaction", [compacted(system, turns // 2) for _ in range(2)])
    short = some(50)
    yield Workload("apart", [conversation(short, 4, 60, 80) for _ in range(6)])


def _merged(turns: Turns) -> list[tuple[Ids, list[int]]]:
    paths: list[tuple[Ids, list[int]]] = []
    for prompt, answer in turns:
        before = next((n for n, (ids, _) in enumerate(paths) if prompt[: len(ids)] == ids), None)
        places = list(range(len(prompt), len(prompt) + len(answer)))
        if before is None:
            paths.append((prompt + answer, places))
        else:
            paths[before] = (prompt + answer, paths[before][1] + places)
    return paths


def _rollout(name: str, turns: Turns) -> Rollout:
    calls = [_call(name, number, prompt, answer) for number, (prompt, answer) in enumerate(turns)]
    return Rollout(
        id=name, task_id="task", harness="made", step=0, number=0, seed=0,
        outcome=Outcome.COMPLETED, reward=1.0, calls=tuple(calls),
    )  # fmt: skip


def _call(rollout: str, number: int, prompt: Ids, answer: Ids) -> Call:
    return Call(
        rollout_id=rollout, call_id=f"{rollout}/{number}", position=number, dialect="openai_chat", kind="main",
        cause="continue" if number else "root", parent=None, shared=0, prompt_ids=prompt, sampled_ids=answer,
        logprobs=(-1.0,) * len(answer), spans=(Span(version=0, start=0, end=len(answer)),), finish_reason="stop",
        verdict="text", requested={}, submitted={},
    )  # fmt: skip
