"""A critic on trees against plain autograd over each path alone, and what a learner does with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_rollouts import call, random_rollout, rollout, tiny_policy
from torch import Tensor

from clawexp.algo.grpo import Grpo
from clawexp.algo.ppo import Critic as Options
from clawexp.algo.ppo import Ppo
from clawexp.batch.pack import pack
from clawexp.errors import LearnerError
from clawexp.learner.critic import Critic, Decisions, quality
from clawexp.learner.learner import Learner
from clawexp.model.tree_policy import TreePolicy
from clawexp.records import Call, Rollout
from clawexp.spec import LearnerOptions
from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import Tree, grow

CONF = Path(__file__).parents[2] / "conf"
RETURNS = {"r0": 1.0, "r1": 0.0, "r2": 0.25, "r3": 0.5}
FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def option(file: str, **other: Any) -> dict[str, Any]:
    fields = yaml.safe_load((CONF / file).read_text())
    del fields["_target_"]
    return fields | other


def make(
    folder: Path,
    budget: int = 32768,
    mode: str = "chain",
    lr: float = 3e-4,
    critic_lr: float | None = None,
    **critic: Any,
) -> Learner:
    """A learner with the shipped options, some of the critic's changed."""
    if not folder.exists():
        tiny_policy(folder)
    fields = option("algo/ppo.yaml", lr=lr)
    fields["critic"].pop("_target_")
    if critic_lr is not None:
        critic["lr"] = critic_lr
    fields["critic"] = Options(**fields["critic"] | critic)
    options = LearnerOptions(**option("learner/default.yaml", token_budget=budget, tree_pass=mode))
    return Learner(options, folder, Ppo(**fields), temperature=0.8)


def critic_of(learner: Learner) -> Critic:
    assert learner.critic is not None
    return learner.critic


def exact(folder: Path, **other: Any) -> Learner:
    """The same in float64, with a head that says something."""
    learner = make(folder, **other)
    learner.policy.double()
    head = critic_of(learner).head.double()
    with torch.no_grad():
        head.outer.copy_(torch.linspace(-1, 1, len(head.outer)).double())
    return learner


def attempt(seed: int, number: int) -> Rollout:
    return random_rollout(seed * 7 + number % 3, vocab=11, rollout_id=f"r{number}", num_calls=8)


def attempts(seed: int) -> list[Rollout]:
    """Four rollouts; the last repeats the first to the bit, so that merged they share sampled tokens."""
    return [attempt(seed, number) for number in range(4)]


def trees_of(rollouts: list[Rollout]) -> list[Tree]:
    return [prune(grow(each), auxiliary="full") for each in rollouts]


def batch_of(seed: int = 0):
    return pack([merge(trees_of(attempts(seed)))], RETURNS)


def off_policy(batch):
    """Old logprobs at some distance, so that ratios spread around the clip."""
    batch["old_logprob"] = 0.4 * torch.sin(2.0 * batch["input_ids"] + batch["position"]) - 2.0
    batch["old_logprob"][~batch["decision"]] = 0.0
    return batch


class Dense:
    """One rollout without a tree: each trained call a sequence of its own, in plain autograd."""

    def __init__(self, learner: Learner, each: Rollout, tree: Tree) -> None:
        trained = {segment.calls[0] for segment in tree.segments if segment.trained}
        self.calls = [one for one in each.calls if one.call_id in trained]
        self.reward = RETURNS[each.id]
        self.logprob: dict[tuple[str, int], Tensor] = {}
        self.value: dict[tuple[str, int], Tensor] = {}
        for one in self.calls:
            ids = torch.tensor(one.prompt_ids + one.sampled_ids)
            hidden = dense_hidden(learner.policy, ids)
            rows = (hidden @ learner.policy.head.T / learner.temperature).log_softmax(-1)
            values = critic_of(learner).head(hidden.detach())
            for place in range(len(one.sampled_ids)):
                row = len(one.prompt_ids) + place - 1
                self.logprob[one.call_id, place] = rows[row, ids[row + 1]]
                self.value[one.call_id, place] = values[row]

    def after(self, tree: Tree, name: str, place: int) -> tuple[str, int] | None:
        """The first trained token whose context holds that of this one and itself."""
        if (name, place + 1) in self.value:
            return name, place + 1
        answers = {call_id: pieces for (_, call_id), pieces in tree.answers().items()}
        last = tree.segments[answers[name][-1]]
        below = (one.call_id for one in self.calls if last in tree.path(answers[one.call_id][0])[:-1])
        return next(((later, 0) for later in below if later != name), None)

    def advantages(self, tree: Tree, options: Options) -> dict[tuple[str, int], float]:
        """By the sum that the recursion stands for."""
        found = {}
        for start in self.value:
            total, weight, here = 0.0, 1.0, start
            while (later := self.after(tree, *here)) is not None:
                total += weight * (self.value[later] - self.value[here]).item()
                weight *= options.lambda_token if later[0] == here[0] else options.lambda_turn
                here = later
            found[start] = total + weight * (self.reward - self.value[here].item())
        return found


def dense_hidden(policy: TreePolicy, ids: Tensor) -> Tensor:
    """Final hidden states of one sequence, by softmax over a full square."""

    def see(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        repeats = q.shape[1] // k.shape[1]
        q, k, v = q.transpose(0, 1), *(x.repeat_interleave(repeats, 1).transpose(0, 1) for x in (k, v))
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1)

    return policy.states(ids, torch.arange(len(ids)), see, False)


def gradient(module: torch.nn.Module) -> Tensor:
    found = torch.cat([weight.grad.flatten() for weight in module.parameters() if weight.grad is not None])
    module.zero_grad()
    return found


@pytest.mark.parametrize(("mode", "budget"), [("chain", 32768), ("dfs", 1)])
@pytest.mark.parametrize("seed", range(3))
def test_values_advantages_losses_and_gradients_are_those_of_each_path_alone(tmp_path, mode, budget, seed):
    learner = exact(tmp_path / "policy", mode=mode, budget=budget, lambda_token=0.7, lambda_turn=0.9)
    critic, algo, rollouts = critic_of(learner), learner.algo, attempts(seed)
    trees = trees_of(rollouts)
    batch = off_policy(pack([merge(trees)], RETURNS))
    judged = learner._judged(batch)
    seen = judged.seen
    assert seen is not None
    policy_metrics = learner._forward_backward(learner._credited(judged.batch, judged.advantage))
    policy_gradient = gradient(learner.policy)
    shifted = replace(seen, value=seen.value + 0.3 * torch.sin(torch.arange(len(seen.value)).double()))
    value_loss = critic.options.loss(critic.head(seen.hidden), shifted.value, shifted.target, shifted.weight)
    value_loss.backward()
    head_gradient = gradient(critic.head)

    dense = [Dense(learner, each, tree) for each, tree in zip(rollouts, trees, strict=True)]
    rows = token_rows(batch, [one for each in rollouts for one in each.calls])
    old_value = torch.zeros(len(batch["input_ids"])).double()
    old_value[batch["decision"]] = shifted.value
    decisions = sum(len(each.value) for each in dense)
    policy_loss, critic_loss = torch.zeros(()).double(), torch.zeros(()).double()
    owners: dict[int, list[float]] = {}
    for each, one in zip(rollouts, dense, strict=True):
        advantages = one.advantages(trees[rollouts.index(each)], critic.options)  # pyright: ignore[reportArgumentType]
        for (name, place), advantage in advantages.items():
            token = rows[each.id, name, place]
            owners.setdefault(token, []).append(one.reward)
            torch.testing.assert_close(one.value[name, place].detach(), seen.value[decision_of(batch, token)])
            logprob, sign = one.logprob[name, place], max(advantage, 0.0)
            columns = (batch["old_logprob"][token], batch["behaviour_logprob"][token])
            credit = torch.tensor(sign).double(), torch.tensor(advantage - sign).double()
            policy_loss = policy_loss + algo.loss(logprob, *columns, *credit)[0] / (4 * len(one.value))
    for each, one in zip(rollouts, dense, strict=True):
        for (name, place), value in one.value.items():
            token = rows[each.id, name, place]
            target = torch.tensor(sum(owners[token]) / len(owners[token])).double()
            share = torch.ones(()).double() / decisions
            critic_loss = critic_loss + critic.options.loss(value, old_value[token], target, share)
    policy_loss.backward()
    critic_loss.backward()
    assert max(len(found) for found in owners.values()) == 2
    assert policy_metrics["learner/loss"] == pytest.approx(policy_loss.item(), rel=1e-5, abs=1e-7)
    assert value_loss.item() == pytest.approx(critic_loss.item(), rel=1e-5)
    assert policy_metrics["learner/clip_fraction"] > 0
    for found, module in ((policy_gradient, learner.policy), (head_gradient, critic.head)):
        want = gradient(module)
        assert want.norm() > 0
        assert (found - want).norm() <= 1e-5 * want.norm()


def token_rows(batch, calls: list[Call]) -> dict[tuple[str, str, int], int]:
    """Where in a batch each sampled token of each call stands: by its path, and by its logprobs on it."""
    paths: list[tuple] = []
    behaviour, sampled = batch["behaviour_logprob"].tolist(), batch["sampled"].tolist()
    for token, parent in enumerate(batch["parent"].tolist()):
        said = behaviour[token] if sampled[token] else None
        above = paths[parent] if parent >= 0 else ((), ())
        own = (said,) if said is not None else ()
        paths.append(((*above[0], int(batch["input_ids"][token])), (*above[1], *own)))
    known: dict[tuple, int] = {}
    for token, (ids, said) in enumerate(paths):
        if sampled[token]:
            known.setdefault((ids, said[-1]), token)
    rows = {}
    for one in calls:
        path = one.prompt_ids + one.sampled_ids
        for place, logprob in enumerate(torch.tensor(one.logprobs).tolist()):
            end = len(one.prompt_ids) + place + 1
            if (path[:end], logprob) in known:
                rows[one.rollout_id, one.call_id, place] = known[path[:end], logprob]
    return rows


def decision_of(batch, token: int) -> int:
    return int(batch["decision"][:token].sum())


@FEW
@given(seed=st.integers(0, 10_000), budget=st.sampled_from([1, 30]))
def test_packing_and_merging_change_neither_losses_nor_metrics(tmp_path, seed, budget):
    trees = trees_of(attempts(seed))
    results = []
    for packed, other in ((trees, {}), ([merge(trees)], {"budget": budget}), ([merge(trees[:2]), *trees[2:]], {})):
        learner = exact(tmp_path / "policy", warmup_batches=0, **other)
        batch = pack(packed, RETURNS)
        results.append((learner.evaluate_loss(batch), critic_of(learner).update(seen_of(learner, batch))))
    for loss, metrics in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-6)
        for key in ("critic/value_mean", "critic/return_mean"):
            assert metrics[key] == pytest.approx(results[0][1][key], rel=1e-6)


def seen_of(learner: Learner, batch) -> Decisions:
    seen = learner._judged(batch).seen
    assert seen is not None
    return seen


def test_owners_of_one_context_share_the_mean_of_their_returns(tmp_path):
    learner = make(tmp_path / "policy")
    rollouts = [rollout([call("c0", [1, 2], [3, last], logprobs=(-0.5, -last))], f"r{last}") for last in (4, 5, 6)]
    batch = pack([merge([grow(each) for each in rollouts])], {"r4": 1.0, "r5": 0.0, "r6": 0.5})
    seen = seen_of(learner, batch)
    assert seen.target.tolist() == pytest.approx([0.5, 1.0, 0.0, 0.5])
    assert seen.weight.tolist() == pytest.approx([3 / 6, 1 / 6, 1 / 6, 1 / 6])
    without = pack([merge([grow(each) for each in rollouts])], {"r4": 1.0, "r5": 0.0})
    assert seen_of(learner, without).target.tolist() == pytest.approx([0.5, 1.0, 0.0])


def test_a_fresh_critic_says_one_half_and_explains_nothing(tmp_path):
    metrics = make(tmp_path / "policy").update(batch_of())
    assert metrics["critic/value_mean"] == pytest.approx(0.5)
    assert metrics["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)


def test_quality_is_what_its_formulas_say():
    value, target = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, 0.0, 0.5])
    weight = torch.tensor([0.25, 0.25, 0.5])
    seen = Decisions(
        hidden=torch.zeros(3, 1), value=value, target=target, spread=torch.zeros(3), weight=weight, varied=True
    )
    assert quality(seen) == pytest.approx(
        {
            "critic/value_mean": 0.25,
            "critic/return_mean": 0.5,
            "critic/value_loss": 0.125,
            "critic/explained_variance": 1 - (0.5 * 0.25 + 0.5 * 0.25 - 0.25**2) / 0.125,
        }
    )
    assert "critic/explained_variance" not in quality(replace(seen, varied=False))


def test_quality_is_over_returns_also_where_rollouts_share_a_token(tmp_path):
    def quality_of(*worth: float) -> dict[str, float]:
        answers = ([3, 4], [3, 5], [6])
        rollouts = [rollout([call("c0", [1, 2], answer)], f"r{n}") for n, answer in enumerate(answers)]
        given = {f"r{n}": each for n, each in enumerate(worth)}
        learner = make(tmp_path / "policy")
        return quality(seen_of(learner, pack([merge([grow(each) for each in rollouts])], given)))

    # Five ownerships of a head that says one half everywhere: 1, 1, 0, 0 and 1.
    found = quality_of(1.0, 0.0, 1.0)
    assert found["critic/value_loss"] == pytest.approx(0.125)
    assert found["critic/return_mean"] == pytest.approx(0.6)
    assert found["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    for same in (0.0, 0.3, 0.7, 1.0):  # no rounding may pass for a spread
        assert "critic/explained_variance" not in quality_of(same, same, same)


def state(module: torch.nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in module.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_while_the_critic_warms_up_it_alone_learns(tmp_path):
    learner = make(tmp_path / "policy", warmup_batches=2)
    for number in range(2):
        policy, head = state(learner.policy), state(critic_of(learner).head)
        metrics = learner.update(batch_of(number))
        assert metrics["critic/warming"] == 1
        assert (learner.step, learner.version) == (number + 1, 0)
        assert same(policy, state(learner.policy))
        assert not same(head, state(critic_of(learner).head))
    policy = state(learner.policy)
    assert learner.update(batch_of(2))["critic/warming"] == 0
    assert not same(policy, state(learner.policy))
    assert learner.version == 1


def test_the_critic_may_learn_alone_until_it_explains_no_more(tmp_path):
    warm = {"warmup_batches": 1, "warmup_gain": 0.1, "lr": 0.01}
    learner = make(tmp_path / "policy", critic_lr=0.02, warmup_limit=30, **warm)
    metrics = [learner.update(batch_of()) for _ in range(30)]
    warming = [each["critic/warming"] for each in metrics]
    explained = [each["critic/explained_variance"] for each in metrics]
    length = int(sum(warming))
    assert warming == [1.0] * length + [0.0] * (30 - length)
    assert 2 < length < 30
    gains = [one - max([0.0, *explained[1:place]]) for place, one in enumerate(explained)]
    assert min(gains[1 : length - 1]) >= 0.1 > gains[length - 1]
    short = make(tmp_path / "policy", critic_lr=0.02, warmup_limit=2, **warm)
    assert [short.update(batch_of())["critic/warming"] for _ in range(3)] == [1, 1, 0]


def test_the_critic_gives_the_policy_no_gradient(tmp_path):
    learner = make(tmp_path / "policy", warmup_batches=0)
    critic_of(learner).update(seen_of(learner, batch_of()))
    assert all(weight.grad is None for weight in learner.policy.parameters())


@pytest.mark.parametrize("warmup_batches", [0, 1])
def test_the_loss_of_an_update_can_be_told_before_it(tmp_path, warmup_batches):
    learner = make(tmp_path / "policy", warmup_batches=warmup_batches)
    expected = learner.evaluate_loss(batch_of())
    assert learner.update(batch_of())["learner/loss"] == pytest.approx(expected, abs=1e-7)


def test_a_batch_without_decisions_teaches_nobody(tmp_path):
    learner = make(tmp_path / "policy")
    head = state(critic_of(learner).head)
    for batch in (pack([], {}), pack(trees_of(attempts(0)), {})):
        assert learner.update(batch)["learner/skipped"] == 1
    assert same(head, state(critic_of(learner).head))
    assert critic_of(learner).warming


def test_a_resumed_learner_goes_on_to_the_bit_critic_and_all(tmp_path):
    straight = make(tmp_path / "policy")
    for seed in range(2):
        straight.update(batch_of(seed))
    straight.save(tmp_path / "step-00002")
    resumed = make(tmp_path / "policy")
    resumed.resume(tmp_path / "step-00002")
    for seed in range(2, 4):
        one, other = straight.update(batch_of(seed)), resumed.update(batch_of(seed))
        del one["learner/tokens_per_s"], other["learner/tokens_per_s"]
        assert one == other
    assert same(state(straight.policy), state(resumed.policy))
    assert same(state(critic_of(straight).head), state(critic_of(resumed).head))


def test_a_checkpoint_without_a_critic_or_of_another_width_is_refused(tmp_path):
    learner = make(tmp_path / "policy")
    options = LearnerOptions(**option("learner/default.yaml"))
    Learner(options, tmp_path / "policy", Grpo(**option("algo/grpo.yaml")), 0.8).save(tmp_path / "without")
    make(tmp_path / "policy", width=3).save(tmp_path / "narrow")
    for folder in ("without", "narrow"):
        with pytest.raises(LearnerError, match="does not fit this learner"):
            learner.resume(tmp_path / folder)


def test_values_that_are_no_numbers_are_refused(tmp_path):
    learner = make(tmp_path / "policy")
    seen = seen_of(learner, batch_of())
    head = state(critic_of(learner).head)
    with pytest.raises(LearnerError, match="the loss of its values is nan"):
        critic_of(learner).update(replace(seen, hidden=seen.hidden * float("nan")))
    assert same(head, state(critic_of(learner).head))


def test_it_learns_which_prompts_end_well_and_the_policy_what_to_do_there(tmp_path):
    """Three prompts: one always pays, one never, and on one a token decides."""
    learner = make(tmp_path / "policy", lr=0.01, lambda_turn=1.0)
    generator = torch.Generator().manual_seed(0)
    explained = []
    for _ in range(30):
        rollouts, returns = [], {}
        for number in range(24):
            prompt, name = (1, 2 + number % 3), f"r{number}"
            logprobs = next_logprobs(learner, prompt)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
            rollouts.append(rollout([call("c0", prompt, [token], logprobs=(logprobs[token].item(),))], name))
            returns[name] = (1.0, 0.0, float(token == 7))[number % 3]
        metrics = learner.update(pack([merge([grow(each) for each in rollouts])], returns))
        explained.append(metrics["critic/explained_variance"])
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    assert explained[-1] > 0.8
    assert next_logprobs(learner, (1, 4))[7].exp() > 0.8


def next_logprobs(learner: Learner, prompt: tuple[int, ...]) -> Tensor:
    """What an engine would sample from."""
    with torch.no_grad():
        logits = learner.policy.head @ dense_hidden(learner.policy, torch.tensor(prompt))[-1]
        return (logits / learner.temperature).log_softmax(-1)
