import itertools
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from made_rollouts import call, rollout
from pydantic import ValidationError

from clawexp.algo.ppo import Critic, Ppo
from clawexp.errors import LearnerError
from clawexp.pack import pack
from clawexp.tree import grow

OPTION = Path(__file__).parents[2] / "conf" / "algo" / "ppo.yaml"
GROUP = ("task", "builtin")


def critic(**other: Any) -> Critic:
    """That of the shipped option, with some keys changed."""
    fields = yaml.safe_load(OPTION.read_text())["critic"]
    assert fields.pop("_target_") == "clawexp.algo.ppo.Critic"
    return Critic(**fields | other)


def ppo(**other: Any) -> Ppo:
    fields = yaml.safe_load(OPTION.read_text())
    assert fields.pop("_target_") == "clawexp.algo.ppo.Ppo"
    fields["critic"] = critic()
    return Ppo(**fields | other)


def test_the_option_is_complete_and_its_module_needs_no_torch():
    ppo()
    code = "import sys, clawexp.algo.ppo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("wrong", [{"lambda_turn": 1.5}, {"advantage": "gae"}, {"epochs": 0}, {"gamma": 1.0}])
def test_a_wrong_option_is_refused(wrong):
    with pytest.raises(ValidationError):
        critic(**wrong)


def test_a_return_is_the_reward_of_a_valid_rollout():
    rewards, valid = [1.0, math.nan, 0.25], [True, False, True]
    assert ppo().worth(rewards, [GROUP] * 3, valid) == [1.0, 0.0, 0.25]


@pytest.mark.parametrize("reward", [1.5, -0.1, math.nan])
def test_a_reward_where_no_value_can_lie_is_refused(reward):
    with pytest.raises(LearnerError, match=r"task task under builtin: the reward .* is not within \[0, 1\]"):
        ppo().worth([0.5, reward], [GROUP] * 2, [True] * 2)


def test_the_loss_is_clipped_and_truncated_as_the_option_says():
    algo = ppo(clip_low=0.1, clip_high=0.4, tis_cap=1.25)
    logprob, old = torch.tensor([0.5, -0.5]).log1p(), torch.zeros(2)
    loss, _ = algo.loss(logprob, old, old - 1, torch.tensor([1.0, 0.0]), torch.tensor([0.0, -1.0]))
    assert loss.item() == pytest.approx(1.25 * (-1.4 + 0.9))


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [
        (0.6, 1.0, 0.5 * 0.4**2, -0.4),
        (0.9, 1.0, 0.5 * 0.3**2, 0.0),  # moved by more than the clip, towards the target: no further
        (0.2, 1.0, 0.5 * 0.8**2, -0.8),  # away from it: back at once
    ],
)
def test_a_batch_moves_a_value_by_the_clip_at_most(value, target, loss, gradient):
    now = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    fixed = (torch.tensor([x], dtype=torch.float64) for x in (0.5, target, 1.0))
    found = critic(clip=0.2).loss(now, *fixed)
    found.backward()
    assert now.grad is not None
    assert (found.item(), now.grad.item()) == (pytest.approx(loss), pytest.approx(gradient))


def chain(values: list[float], answers: list[int], reward: float, options: Critic) -> list[float]:
    """Advantages on a rollout of one call after another, with values of its sampled tokens in order."""
    calls, prompt = [], [1]
    for number, length in enumerate(answers):
        sampled = [2] * length
        calls.append(call(f"c{number}", prompt, sampled))
        prompt = [*prompt, *sampled, 3, 3]
    batch = pack([grow(rollout(calls))], {"r0": reward})
    value = torch.zeros(len(batch["owners"]), dtype=torch.float64)
    value[batch["decision"]] = torch.tensor(values, dtype=torch.float64)
    returns = torch.full_like(value, reward)
    return options.advantages(returns, value, batch["successor"], batch["within"])[batch["decision"]].tolist()


def test_on_a_chain_it_is_gae_over_the_sampled_tokens_alone():
    values, reward, turn, token = [0.2, 0.5, 0.4, 0.9, 0.7], 1.0, 0.9, 0.6
    found = chain(values, [2, 3], reward, critic(lambda_token=token, lambda_turn=turn))
    deltas = [b - a for a, b in zip(values, [*values[1:], reward], strict=True)]
    decay = [token, turn, token, token]
    want = [sum(deltas[j] * math.prod(decay[i:j]) for j in range(i, 5)) for i in range(5)]
    assert found == pytest.approx(want, abs=1e-12)


def test_with_lambda_one_it_is_the_return_less_the_value():
    values = [0.2, 0.5, 0.4, 0.9, 0.7]
    paper = chain(values, [2, 3], 1.0, critic(advantage="paper", lambda_token=0.0, lambda_turn=0.0))
    assert paper == pytest.approx([1 - value for value in values])
    assert chain(values, [2, 3], 1.0, critic(lambda_token=1.0, lambda_turn=1.0)) == pytest.approx(paper, abs=1e-12)


class Enumeration:
    """All episodes of a small world, each with its chance, so that means are exact.

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

    def bias(self, advantages: list[list[float]]) -> float:
        """Of the mean gradient that they give, relative to the true one."""
        found, true = np.zeros(8), np.zeros(8)
        for (chance, steps, reward), given in zip(self.episodes, advantages, strict=True):
            for step, advantage in zip(steps, given, strict=True):
                found += chance * advantage * self.gradient(*step)
                true += chance * reward * self.gradient(*step)
        return float(np.linalg.norm(found - true) / np.linalg.norm(true))

    def advantages(self, options: Critic, link: str) -> list[list[float]]:
        """Of each step of each episode. `link`: successors as they are packed, or each step's next in time."""
        found = []
        for _, steps, reward in self.episodes:
            calls = [call(str(n), [ord(x) for x in context], [ord(str(a))]) for n, (context, a) in enumerate(steps)]
            batch = pack([grow(rollout(calls))], {"r0": 1.0})
            places = [place_of(batch, each.prompt_ids + each.sampled_ids) for each in calls]
            value = torch.zeros(len(batch["owners"]), dtype=torch.float64)
            value[places] = torch.tensor([self.value[context] for context, _ in steps], dtype=torch.float64)
            if link == "time":  # tokens do not stand in the order of time, so links are made on the steps alone
                value, after = value[places], torch.tensor([*range(1, len(steps)), -1])
                given = options.advantages(torch.full_like(value, reward), value, after, torch.zeros(len(steps)))
                found.append(given.tolist())
                continue
            given = options.advantages(torch.full_like(value, reward), value, batch["successor"], batch["within"])
            found.append(given[places].tolist())
        return found


def place_of(batch, path: tuple[int, ...]) -> int:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(batch["input_ids"].tolist(), batch["parent"].tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return next(i for i, each in enumerate(paths) if each == path and batch["sampled"][i])


@pytest.fixture(scope="module")
def world() -> Enumeration:
    return Enumeration()


@pytest.mark.parametrize("lambda_turn", [1.0, 0.95, 0.5, 0.0])
def test_with_exact_values_the_gradient_is_exact_at_any_lambda(world, lambda_turn):
    assert world.bias(world.advantages(critic(lambda_turn=lambda_turn), "packed")) < 1e-12


@pytest.mark.parametrize("lambda_turn", [0.95, 0.5, 0.0])
def test_values_from_beyond_a_loss_of_context_would_bend_it(world, lambda_turn):
    assert world.bias(world.advantages(critic(lambda_turn=lambda_turn), "time")) > 1e-3
