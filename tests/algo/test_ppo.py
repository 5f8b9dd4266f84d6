import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from enumerated_world import World, place_of, rollout_of
from made_rollouts import call, rollout
from pydantic import ValidationError

from clawexp.algo.ppo import Critic, Ppo
from clawexp.batch.batch import owned_token
from clawexp.batch.pack import pack
from clawexp.errors import LearnerError
from clawexp.tree.forest import merge
from clawexp.tree.tree import grow

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


def packed_advantages(world: World, options: Critic) -> list[list[float]]:
    """Of each step of each episode, with successors as they are packed."""
    found = []
    for _, steps, reward in world.episodes:
        made = rollout_of(steps)
        batch = pack([grow(made)], {"r0": 1.0})
        places = [place_of(batch, each.prompt_ids + each.sampled_ids) for each in made.calls]
        value = torch.zeros(len(batch["owners"]), dtype=torch.float64)
        value[places] = values_of(world, steps)
        given = options.advantages(torch.full_like(value, reward), value, batch["successor"], batch["within"])
        found.append(given[places].tolist())
    return found


def chronological_advantages(world: World, options: Critic) -> list[list[float]]:
    """The same with each step's next in time for its successor, whatever context was lost."""
    found = []
    for _, steps, reward in world.episodes:
        value, after = values_of(world, steps), torch.tensor([*range(1, len(steps)), -1])
        given = options.advantages(torch.full_like(value, reward), value, after, torch.zeros(len(steps)))
        found.append(given.tolist())
    return found


def averaged_advantages(world: World, lambda_turn: float) -> list[list[float]]:
    """The same with the mean over all calls whose context extends the step's, though they exist by what was seen."""
    found = []
    for _, steps, reward in world.episodes:
        value, names = values_of(world, steps).tolist(), [context for context, _ in steps]
        advantage = [reward - v for v in value]
        for k in reversed(range(len(steps))):
            own = f"{names[k]}{steps[k][1]}"
            below = [i for i, name in enumerate(names) if name.startswith(own) and name[0] != "S"]
            below = [i for i in below if not any(names[i].startswith(names[j]) for j in below if j != i)]
            if below:
                advantage[k] = np.mean([value[i] + lambda_turn * advantage[i] for i in below]).item() - value[k]
        found.append(advantage)
    return found


def values_of(world: World, steps: list[tuple[str, int]]) -> torch.Tensor:
    return torch.tensor([world.value[context] for context, _ in steps], dtype=torch.float64)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.parametrize("lambda_turn", [1.0, 0.95, 0.5, 0.0])
def test_with_exact_values_the_gradient_is_exact_at_any_lambda(world, lambda_turn):
    assert world.bias(packed_advantages(world, critic(lambda_turn=lambda_turn))) < 1e-12


@pytest.mark.parametrize("lambda_turn", [0.95, 0.5, 0.0])
def test_values_from_beyond_a_loss_of_context_would_bend_it(world, lambda_turn):
    assert world.bias(chronological_advantages(world, critic(lambda_turn=lambda_turn))) > 1e-3


@pytest.mark.parametrize("lambda_turn", [0.95, 0.5, 0.0])
def test_a_mean_over_branches_that_exist_by_what_was_seen_would_bend_it(world, lambda_turn):
    assert world.bias(averaged_advantages(world, lambda_turn)) > 1e-3


@pytest.mark.parametrize("lambda_turn", [1.0, 0.5])
def test_on_siblings_that_were_drawn_alike_it_is_the_mean_over_them(lambda_turn):
    """Rollouts that share their first answer and part after it: by chance, so all of them are successors."""
    after, rewards = [0.3, 0.8, 0.5], [1.0, 0.0, 0.25]
    attempts = [
        rollout([call("a", [1], [2, 3]), call("b", [1, 2, 3, 10 + n], [4])], f"r{n}") for n in range(len(after))
    ]
    batch = pack([merge([grow(each) for each in attempts])], {f"r{n}": reward for n, reward in enumerate(rewards)})
    token = torch.zeros(len(batch["input_ids"]), dtype=torch.float64)
    token[batch["decision"]] = torch.tensor([0.1, 0.6, *after], dtype=torch.float64)
    owned = owned_token(batch)
    options, returns = critic(lambda_token=0.7, lambda_turn=lambda_turn), batch["worth"][batch["owners"]]
    given = options.advantages(returns, token[owned], batch["successor"], batch["within"])
    first, last = ((given[owned == place]).mean().item() for place in (1, 2))
    below = [v + lambda_turn * (reward - v) for v, reward in zip(after, rewards, strict=True)]
    assert last == pytest.approx(sum(below) / 3 - 0.6, abs=1e-12)
    assert first == pytest.approx(0.6 + 0.7 * last - 0.1, abs=1e-12)
