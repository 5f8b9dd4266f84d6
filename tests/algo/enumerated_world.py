"""A world so small that all its episodes can be listed, so that means over them are exact."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from made_rollouts import call, rollout
from tensordict import TensorDict

from clawexp.records import Rollout


class World:
    """All episodes, each with its chance.

    a1 is chosen, a tool answers o, a hidden event u opens a side call on what came before o; then a compaction c is
    written, and the next root sees nothing but c. Adapted to real trees: contexts are prompts, choices are calls.
    """

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        self.feature: dict[str, np.ndarray] = defaultdict(lambda: draw.normal(size=8))
        self.theta = draw.normal(size=8) * 0.8
        self.reward: dict[tuple[int, ...], float] = {key: draw.normal() for key in itertools.product((0, 1), repeat=7)}
        self.episodes = [episode for key in self.reward if (episode := self.episode(key))]
        visits: dict[str, float] = defaultdict(float)
        worth: dict[str, float] = defaultdict(float)
        for chance, steps, reward in self.episodes:
            for context, _ in steps:
                visits[context] += chance
                worth[context] += chance * reward
        self.value = {context: worth[context] / visits[context] for context in visits}

    def chances(self, context: str) -> np.ndarray:
        scores = np.exp([self.feature[context + str(a)] @ self.theta for a in (0, 1)])
        return scores / scores.sum()

    def episode(self, key: tuple[int, ...]) -> tuple[float, list[tuple[str, int]], float] | None:
        a1, o, u, a2, a3, c, a4 = key
        if a3 and not u:
            return None
        steps = [("x", a1), (f"x{a1}o{o}", a2), *([(f"x{a1}B", a3)] if u else [])]
        steps += [(f"x{a1}o{o}{a2}C", c), (f"S{c}", a4)]
        chance = (0.6, 0.4)[o] * ((0.7, 0.3), (0.2, 0.8))[a1][u] * math.prod(self.chances(s)[a] for s, a in steps)
        return chance, steps, self.reward[key]

    def gradient(self, context: str, choice: int) -> np.ndarray:
        """Of the choice's logprob."""
        features = np.array([self.feature[context + str(a)] for a in (0, 1)])
        return features[choice] - self.chances(context) @ features

    def bias(self, advantages: Sequence[Sequence[float]]) -> float:
        """Of the mean gradient that they give, relative to the true one."""
        found, true = np.zeros(8), np.zeros(8)
        for (chance, steps, reward), given in zip(self.episodes, advantages, strict=True):
            for step, advantage in zip(steps, given, strict=True):
                found += chance * advantage * self.gradient(*step)
                true += chance * reward * self.gradient(*step)
        return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def rollout_of(steps: Sequence[tuple[str, int]], rollout_id: str = "r0") -> Rollout:
    """An episode as calls: contexts are prompts, choices are answers; side calls and compactions are auxiliary."""
    return rollout(
        [
            call(
                str(number),
                [ord(letter) for letter in context],
                [ord(str(choice))],
                kind="auxiliary" if context[-1] in "BC" else "main",
            )
            for number, (context, choice) in enumerate(steps)
        ],
        rollout_id,
    )


def place_of(batch: TensorDict, path: tuple[int, ...]) -> int:
    """Where the answer that ends a path stands."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(batch["input_ids"].tolist(), batch["parent"].tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return next(i for i, each in enumerate(paths) if each == path and batch["sampled"][i])
