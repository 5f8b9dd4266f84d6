import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_rollouts import call, random_rollout, rollout, tiny_policy
from safetensors.torch import load_file, save_file
from transformers import GemmaConfig, GemmaForCausalLM

from clawexp.algo.grpo import Grpo
from clawexp.batch.batch import credited, load, owned_token, save
from clawexp.batch.pack import pack
from clawexp.errors import LearnerError
from clawexp.learner.learner import Learner
from clawexp.model import tree_pass
from clawexp.model.decoder import Policy
from clawexp.model.tree_pass import TreeTokens, tree_backward
from clawexp.spec import LearnerOptions
from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import Tree, grow
from clawexp.whole_folder import seal

CONF = Path(__file__).parents[2] / "conf"
ADVANTAGES = {"r0": 1.0, "r1": -0.5, "r2": 0.25, "r3": -0.75}
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def option(file: str, **other: Any) -> dict[str, Any]:
    fields = yaml.safe_load((CONF / file).read_text())
    del fields["_target_"]
    return fields | other


def make(folder: Path, budget: int = 32768, mode: str = "auto", **algo: Any) -> Learner:
    """A learner with the shipped options, some changed."""
    if not folder.exists():
        tiny_policy(folder)
    memory = {key: algo.pop(key) for key in ("graph_gb", "activation_checkpointing") if key in algo}
    options = LearnerOptions(**option("learner/default.yaml", token_budget=budget, tree_pass=mode, **memory))
    return Learner(options, folder, Grpo(**option("algo/grpo.yaml", **algo)), temperature=0.8)


def exact(folder: Path, **other: Any) -> Learner:
    """The same in float64, where equal maths shows as equal numbers."""
    learner = make(folder, **other)
    learner.policy.double()
    return learner


def session(seed: int, number: int, rollout_id: str | None = None):
    return random_rollout(seed * 7 + number, vocab=11, rollout_id=rollout_id or f"r{number}")


def trees_of(seed: int) -> list[Tree]:
    """Four rollouts; the last repeats the first to the bit, so that merged they share sampled tokens."""
    return [prune(grow(session(seed, number % 3, f"r{number}")), auxiliary="full") for number in range(4)]


def off_policy(learner: Learner, batch):
    """Old logprobs at some distance, so that ratios spread around the clip."""
    batch = learner.with_old_logprob(batch)
    noise = 0.6 * torch.sin(2.0 * batch["input_ids"] + batch["position"])
    batch["old_logprob"] += torch.where(batch["decision"], noise, 0.0)
    return batch


def gradient(learner: Learner) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in learner.policy.parameters() if weight.grad is not None])


def state(learner: Learner) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in learner.policy.parameters()]


@pytest.mark.parametrize("mode", ["chain", "dfs"])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_of_a_merged_tree_is_the_sum_over_rollouts_and_calls_each_alone(tmp_path, mode, seed):
    learner = exact(tmp_path / "policy", mode=mode)
    trees = trees_of(seed)
    batch = off_policy(learner, pack([merge(trees)], ADVANTAGES))
    old = {}  # (ids on the path) -> old logprob: equal paths are equal states
    for token in batch["decision"].nonzero().flatten().tolist():
        old[path_ids(batch, token)] = batch["old_logprob"][token].double()
    learner._forward_backward(credited(batch, batch["worth"][batch["owners"]]))
    found, found_loss = gradient(learner), learner.evaluate_loss(batch)
    learner.policy.zero_grad()
    reference = sum(per_call_loss(learner, tree, old) for tree in trees)
    assert found_loss == pytest.approx(reference, rel=1e-6)
    assert (gradient(learner) - found).norm() <= 1e-6 * found.norm()


def path_ids(batch, token: int) -> tuple[int, ...]:
    ids = []
    while token >= 0:
        ids.append(int(batch["input_ids"][token]))
        token = int(batch["parent"][token])
    return tuple(ids[::-1])


def per_call_loss(learner: Learner, tree: Tree, old: dict) -> float:
    """Each trained call of one rollout as a sequence of its own, with the rollout's own advantage."""
    total = sum(len(segment.ids) for segment in tree.segments if segment.trained)
    credit = ADVANTAGES[tree.rollouts[0]] / (len(ADVANTAGES) * total)
    loss = 0.0
    for pieces in tree.answers().values():
        if not tree.segments[pieces[0]].trained:
            continue
        ids = [int(token) for segment in tree.path(pieces[-1]) for token in segment.ids]
        behaviour = torch.tensor([lp for piece in pieces for lp in tree.segments[piece].logprobs]).double()
        targets = torch.arange(len(ids) - len(behaviour), len(ids))
        olds = torch.stack([old[tuple(ids[: token + 1])] for token in targets.tolist()])
        weight = torch.full((len(targets),), credit).double()

        def token_loss(logprob, which, olds=olds, behaviour=behaviour, weight=weight):
            nonlocal loss
            columns = olds[which], behaviour[which], weight[which].clamp(min=0), weight[which].clamp(max=0)
            value, _ = learner.algo.loss(logprob, *columns)
            loss += value.item()
            return value

        length = torch.arange(len(ids))
        tokens = TreeTokens(input_ids=torch.tensor(ids), position=length, parent=length - 1)
        tree_backward(learner.policy, tokens, targets, token_loss, learner.temperature, "chain")
    return loss


def assert_same_loss(learner: Learner, one, other) -> None:
    """Equal within 1e-6 of the loss's size without cancellation."""
    assert one["decision"].any()
    assert abs(learner.evaluate_loss(one) - learner.evaluate_loss(other)) <= 1e-6 * size_of(one)


def size_of(batch) -> float:
    """Of a loss, without cancellation."""
    batch = credited(batch, batch["worth"][batch["owners"]])
    return max(float((batch["positive"] - batch["negative"]).sum()), 1e-12)


@FEW
@given(seed=st.integers(0, 10_000), budget=st.sampled_from([1, 30, 10_000]))
def test_packing_and_merging_do_not_change_the_loss(tmp_path, seed, budget):
    learner, trees = exact(tmp_path / "policy"), trees_of(seed)
    other = exact(tmp_path / "policy", budget=budget)
    one = pack(trees, ADVANTAGES)
    assert_same_loss(learner, one, pack([merge(trees)], ADVANTAGES))
    assert_same_loss(learner, one, pack([merge(trees[:2]), merge(trees[2:])], ADVANTAGES))
    assert other.evaluate_loss(one) == pytest.approx(learner.evaluate_loss(one), abs=1e-6 * size_of(one))


@pytest.mark.parametrize("objective", ["clipped", "cispo", "gspo"])
@pytest.mark.parametrize("normaliser", ["prompt", "token"])
def test_merging_and_cutting_change_no_gradient_of_any_objective(tmp_path, objective, normaliser):
    """With all that an objective may have beside it: reference, entropy bonus, band, veto, auxiliary weight."""
    beside = {"reference_kl": 0.3, "entropy_bonus": 0.2, "token_band": [0.01, 3.0], "veto": 1e-4, "clip_high": 0.05}
    trees, found = trees_of(1), []
    groups = {name: ("task", "a" if name in ("r0", "r3") else "b") for name in ADVANTAGES}
    for packed, budget in ((trees, 32768), ([merge(trees)], 32768), ([merge(trees[:3]), trees[3]], 1)):
        learner = exact(tmp_path / "policy", objective=objective, budget=budget, **beside)
        for weight in learner.policy.parameters():  # at some distance from the reference
            weight.data += 0.1 * torch.cos(torch.arange(weight.numel()).double()).view_as(weight)
        batch = off_policy(learner, pack(packed, ADVANTAGES, normaliser, groups=groups, auxiliary_weight=0.4))
        judged = learner._judged(batch)
        learner._forward_backward(learner._credited(judged.batch, judged.advantage))
        found.append((judged.metrics["learner/rejected_share"], learner.evaluate_loss(batch), gradient(learner)))
    assert 0 < found[0][0] < 1
    for rejected, loss, slope in found[1:]:
        assert rejected == found[0][0]
        assert loss == pytest.approx(found[0][1], rel=1e-5)
        assert (slope - found[0][2]).norm() <= 1e-5 * found[0][2].norm()


@pytest.mark.parametrize("normaliser", ["rollout", "prompt", "token", "constant"])
def test_a_rollout_that_is_not_valid_changes_no_loss(tmp_path, normaliser):
    learner, trees = exact(tmp_path / "policy"), trees_of(2)
    worth = {name: value for name, value in ADVANTAGES.items() if name != "r1"}
    groups = dict.fromkeys(ADVANTAGES, ("task", "builtin"))
    others = [tree for tree in trees if tree.rollouts != ("r1",)]
    alone, beside = (pack([merge(each)], worth, normaliser, 50, groups=groups) for each in (others, trees))
    assert learner.evaluate_loss(beside) == pytest.approx(learner.evaluate_loss(alone), rel=1e-12)


@FEW
@given(seed=st.integers(0, 10_000), which=st.randoms(use_true_random=False))
def test_splitting_a_segment_does_not_change_the_loss(tmp_path, seed, which: random.Random):
    learner, trees = exact(tmp_path / "policy"), trees_of(seed)
    tree = trees[0]
    long = [index for index, segment in enumerate(tree.segments) if len(segment.ids) > 1]
    at = which.choice(long)
    head, tail = tree.segments[at].cut(which.randint(1, len(tree.segments[at].ids) - 1))
    later = [replace(s, parent=s.parent + 1 if s.parent >= at else s.parent) for s in tree.segments[at + 1 :]]
    cut = replace(tree, segments=(*tree.segments[:at], head, replace(tail, parent=at), *later))
    assert_same_loss(learner, pack(trees, ADVANTAGES), pack([cut, *trees[1:]], ADVANTAGES))


@FEW
@given(seed=st.integers(0, 10_000), order=st.permutations(range(12)))
def test_the_order_of_leaves_does_not_change_the_loss(tmp_path, seed, order):
    learner = exact(tmp_path / "policy")
    one, other = session(seed, 0), session(seed, 1)
    shuffled = replace(one, calls=tuple(one.calls[index] for index in order))
    # Nothing is judged by order here: both trees train every call.
    trees = [replace(grow(each), segments=all_trained(grow(each))) for each in (one, shuffled)]
    advantages = {"r0": 1.0, "r1": -0.5}
    second = grow(other)
    assert_same_loss(learner, pack([trees[0], second], advantages), pack([second, trees[1]], advantages))


def all_trained(tree: Tree):
    return tuple(replace(segment, trained=segment.sampled) for segment in tree.segments)


@FEW
@given(seed=st.integers(0, 10_000), which=st.integers(0, 11))
def test_a_duplicate_path_does_not_change_the_loss(tmp_path, seed, which):
    learner = exact(tmp_path / "policy")
    one, other = session(seed, 0), session(seed, 1)
    again = replace(one.calls[which], call_id="again", cause="retry", position=12)
    advantages = {"r0": 1.0, "r1": -0.5}
    # Only what the copy adds is looked at: answers that it replaces by being a retry are not a matter here.
    plain = [replace(each, cause="continue") if each.cause == "retry" else each for each in one.calls]
    batches = []
    for calls in (plain, [*plain, replace(again, cause="continue")]):
        trees = [prune(grow(replace(one, calls=tuple(calls))), auxiliary="full"), grow(other)]
        batches.append(pack(trees, advantages))
    assert_same_loss(learner, *batches)


def batch_of(seed: int = 0):
    return pack([merge(trees_of(seed))], ADVANTAGES)


def test_an_update_reports_its_metrics_and_lowers_the_loss(tmp_path):
    learner = make(tmp_path / "policy", lr=1e-3)
    batch = learner.with_old_logprob(batch_of())
    before = learner.evaluate_loss(batch)
    metrics = learner.update(batch)
    assert metrics["learner/loss"] == pytest.approx(before, rel=1e-5)
    assert learner.evaluate_loss(batch) < before
    assert (learner.step, learner.version, metrics["learner/version"]) == (1, 1, 1)
    assert metrics["learner/unique_tokens"] == len(batch["parent"])
    assert metrics["learner/trained_tokens"] == int(batch["decision"].sum())
    assert metrics["learner/grad_norm"] > 0
    assert metrics["learner/entropy"] > 0
    assert 0 < metrics["learner/ess"] <= 1
    assert metrics["learner/tree_token_ratio"] > 1


@pytest.mark.parametrize("mode", ["chain", "dfs"])
def test_without_old_logprobs_the_update_is_that_of_a_separate_pass(tmp_path, mode):
    bypass = exact(tmp_path / "policy", mode=mode)
    separate = exact(tmp_path / "policy", mode=mode, recompute_old=True)
    one, other = bypass.update(batch_of()), separate.update(batch_of())
    assert one["learner/loss"] == pytest.approx(other["learner/loss"], rel=1e-6)
    assert one["learner/grad_norm"] == pytest.approx(other["learner/grad_norm"], rel=1e-5)
    for weight, same in zip(state(bypass), state(separate), strict=True):
        torch.testing.assert_close(weight, same, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["chain", "dfs"])
@pytest.mark.parametrize("budget", [1, 20, 40])
def test_micro_batches_of_trees_and_of_their_branches_add_up_to_the_whole_batch(tmp_path, budget, mode):
    whole, parts = exact(tmp_path / "policy", mode=mode), exact(tmp_path / "policy", mode=mode, budget=budget)
    batch = pack(trees_of(0), ADVANTAGES)
    one, other = whole.update(batch), parts.update(batch)
    of_passes = {f"learner/{name}" for name in ("passes", "largest_pass_tokens", "pass_fill", "repeated_tokens")}
    assert (one["learner/passes"], one["learner/largest_pass_tokens"]) == (1, 201)
    assert other["learner/largest_pass_tokens"] <= max(budget, int(batch["position"].max()) + 1)
    assert other["learner/repeated_tokens"] > 0
    for key in one.keys() - of_passes - {"learner/tokens_per_s"}:
        assert one[key] == pytest.approx(other[key], rel=1e-9), key
    for weight, same in zip(state(whole), state(parts), strict=True):
        torch.testing.assert_close(weight, same)


def test_memory_options_change_no_update(tmp_path, monkeypatch):
    """Depth first and by checkpoints, where the graph of a tree is larger than the limit."""
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", 8)
    plain = exact(tmp_path / "policy")
    spare = exact(tmp_path / "policy", mode="auto", graph_gb=1e-5, activation_checkpointing=True)
    one, other = plain.update(batch_of()), spare.update(batch_of())
    assert one["learner/loss"] == pytest.approx(other["learner/loss"], rel=1e-9)
    for weight, same in zip(state(plain), state(spare), strict=True):
        torch.testing.assert_close(weight, same)


def test_a_model_of_transformers_learns_saves_and_resumes(tmp_path):
    config = GemmaConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=24, pad_token_id=0, eos_token_id=1, bos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    GemmaForCausalLM(config).save_pretrained(tmp_path / "policy")
    learner, resumed = (make(tmp_path / "policy", lr=1e-3, reference_kl=0.1) for _ in range(2))
    batch = batch_of()
    before = learner.evaluate_loss(learner.with_old_logprob(batch))
    first = learner.update(learner.with_old_logprob(batch))
    assert first["learner/reference_kl"] == pytest.approx(0, abs=1e-6)
    assert learner.evaluate_loss(learner.with_old_logprob(batch)) != before
    learner.save(tmp_path / "step-00001")
    resumed.resume(tmp_path / "step-00001")
    one, other = learner.update(batch), resumed.update(batch)
    assert one["learner/loss"] == other["learner/loss"]
    assert all(torch.equal(a, b) for a, b in zip(state(learner), state(resumed), strict=True))


def test_further_updates_on_one_batch_are_clipped_against_the_first_policy(tmp_path):
    learner = make(tmp_path / "policy", lr=0.02)
    batch = learner.with_old_logprob(batch_of())
    fractions = [learner.update(batch)["learner/clip_fraction"] for _ in range(6)]
    assert fractions[0] == 0
    assert fractions[-1] > 0


@pytest.mark.parametrize("objective", ["clipped", "cispo", "gspo"])
def test_updates_on_one_batch_are_those_of_one_update_after_another(tmp_path, objective):
    algo = {"objective": objective, "lr": 0.01}
    at_once, apart = (exact(tmp_path / "policy", updates=n, **algo) for n in (3, 1))
    metrics = at_once.update(batch_of())
    batch = apart.with_old_logprob(batch_of())
    each = [apart.update(batch) for _ in range(3)]
    lost = [1 - one["learner/trained_tokens"] / each[0]["learner/trained_tokens"] for one in each]
    fractions = [one.get("learner/clip_fraction", 0.0) + part for one, part in zip(each, lost, strict=True)]
    assert metrics["learner/clip_fraction"] == pytest.approx(sum(fractions) / 3)
    assert fractions[0] == 0
    assert fractions[-1] > 0
    assert (at_once.step, at_once.version) == (1, 3)
    for weight, same in zip(state(at_once), state(apart), strict=True):
        torch.testing.assert_close(weight, same, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["chain", "dfs"])
@pytest.mark.parametrize("seed", range(2))
def test_the_gradient_of_gspo_is_that_of_the_ratios_of_whole_rollouts(tmp_path, mode, seed):
    """Against differences of the objective itself, rollouts apart, each of their tokens once."""
    learner = exact(tmp_path / "policy", mode=mode, objective="gspo", clip_low=0.05, clip_high=0.05, tis_cap=1e9)
    trees = trees_of(seed)
    batch = learner.with_old_logprob(pack([merge(trees)], ADVANTAGES))
    # At some distance, and not the same one in each rollout; the engine agrees with the old policy to the bit.
    shift = torch.where(batch["decision"], 0.4 * torch.sin(1.0 * batch["input_ids"] ** 2 + batch["position"]) - 0.3, 0)
    batch["old_logprob"] = (batch["old_logprob"] + shift).clamp(max=0.0)
    batch["behaviour_logprob"] = batch["old_logprob"].clone()
    learner._forward_backward(learner._credited(batch, batch["worth"][batch["owners"]]))
    found = gradient(learner)

    def objective() -> float:
        total = torch.zeros(4).double()
        count = torch.zeros(4).double()
        owned = owned_token(batch)
        now = torch.zeros(len(batch["input_ids"])).double()
        now[batch["decision"]] = learner.decision_logprobs(batch)
        for token, rollout_number in zip(owned.tolist(), batch["owners"].tolist(), strict=True):
            if batch["decision"][token]:
                total[rollout_number] += now[token] - batch["old_logprob"][token].double()
                count[rollout_number] += 1
        s, worth = (total / count).exp(), batch["worth"]
        clipped.extend(((s * worth) > (s.clamp(0.95, 1.05) * worth)).tolist())
        return (s * worth).minimum(s.clamp(0.95, 1.05) * worth).mean().item()

    clipped: list[bool] = []
    direction = torch.randn(len(found), generator=torch.Generator().manual_seed(seed)).double()
    step, parameters = 1e-6, list(learner.policy.parameters())
    values = []
    for sign in (1, -2):
        for weight, part in zip(parameters, direction.split([w.numel() for w in parameters]), strict=True):
            weight.data += sign * step * part.view_as(weight)
        values.append(objective())
    assert 0 < sum(clipped) < len(clipped)
    assert -found @ direction == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4)


def test_tokens_in_a_band_and_out_of_it_are_counted(tmp_path):
    learner = exact(tmp_path / "policy", token_band=[0.9, 1.1])
    metrics = learner.update(batch_of())
    assert 0 < metrics["learner/mask_fraction"] <= 1
    assert "learner/mask_fraction" not in exact(tmp_path / "policy").update(batch_of())


def sampled_batch(learner: Learner, generator: torch.Generator, worth_of_7: float):
    """Answers of one token to one prompt, as an engine would sample them."""
    chances = next_token_chances(learner, [1, 4]).float()
    tokens = torch.multinomial(chances, 16, replacement=True, generator=generator).tolist()
    trees = [
        grow(rollout([call("c0", [1, 4], [token], logprobs=(chances[token].log().item(),))], f"r{number}"))
        for number, token in enumerate(tokens)
    ]
    return pack([merge(trees)], {f"r{number}": worth_of_7 * (token == 7) for number, token in enumerate(tokens)})


def test_the_reference_is_the_policy_that_the_run_began_with_and_draws_back_to_it(tmp_path):
    generator = torch.Generator().manual_seed(0)
    away = exact(tmp_path / "policy", lr=0.001)
    for _ in range(15):
        away.update(sampled_batch(away, generator, worth_of_7=1.0))
    away.save(tmp_path / "step-00015")
    pulled = exact(tmp_path / "policy", lr=0.005, reference_kl=1.0)
    began = next_token_chances(pulled, [1, 4])
    assert pulled.update(sampled_batch(pulled, generator, 0.0))["learner/reference_kl"] == pytest.approx(0, abs=1e-10)
    pulled.resume(tmp_path / "step-00015")
    distances = []
    for _ in range(30):
        now = next_token_chances(pulled, [1, 4])
        distances.append((now * (now / began).log()).sum().item())
        assert pulled.update(sampled_batch(pulled, generator, 0.0))["learner/skipped"] == 0
    assert distances[0] > 0.3
    assert distances[-1] < 0.25 * distances[0]


def test_an_entropy_bonus_keeps_a_policy_from_growing_certain(tmp_path):
    entropies = {}
    for bonus in (0.0, 0.5):
        learner = exact(tmp_path / "policy", lr=0.005, entropy_bonus=bonus)
        generator = torch.Generator().manual_seed(0)
        for _ in range(25):
            metrics = learner.update(sampled_batch(learner, generator, worth_of_7=1.0))
            entropies[bonus] = metrics.get("learner/entropy", entropies.get(bonus))
    assert entropies[0.5] > entropies[0.0] + 0.3


def test_a_batch_without_loss_changes_nothing_and_says_so(tmp_path):
    learner = make(tmp_path / "policy")
    before = state(learner)
    metrics = learner.update(pack(trees_of(0), dict.fromkeys(ADVANTAGES, 0.0)))
    assert metrics["learner/skipped"] == 1
    assert (learner.step, learner.version) == (1, 0)
    assert all(torch.equal(weight, same) for weight, same in zip(before, state(learner), strict=True))
    assert learner.update(pack([], {}))["learner/skipped"] == 1
    assert learner.update(batch_of())["learner/skipped"] == 0


def test_a_batch_read_from_disk_gives_the_same_update(tmp_path):
    batch = batch_of()
    save(batch, tmp_path / "batch")
    one, other = make(tmp_path / "policy"), make(tmp_path / "policy", recompute_old=True)
    mapped = load(tmp_path / "batch")
    assert one.evaluate_loss(mapped) == one.update(batch)["learner/loss"] == other.update(mapped)["learner/loss"]


def test_a_broken_batch_is_refused(tmp_path):
    batch = batch_of()
    batch["behaviour_logprob"][:] = float("nan")
    with pytest.raises(LearnerError, match="not finite"):
        make(tmp_path / "policy").update(batch)


def test_a_token_that_the_policy_does_not_know_is_refused(tmp_path):
    batch = pack([grow(rollout([call("c0", [1, 11], [2])]))], {"r0": 1.0})
    with pytest.raises(LearnerError, match="token 11, and the policy knows 0 to 10"):
        make(tmp_path / "policy").update(batch)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(tmp_path):
    learner = make(tmp_path / "policy")
    with torch.no_grad():
        learner.policy.embedding[0, 0] = float("nan")
    before = state(learner)
    with pytest.raises(LearnerError, match=r"norm of the gradient is nan.*weights are unchanged"):
        learner.update(batch_of())
    assert learner.version == 0
    for weight, same in zip(before, state(learner), strict=True):
        torch.testing.assert_close(weight, same, equal_nan=True, rtol=0, atol=0)


def test_the_learning_rate_rises_over_the_warm_up(tmp_path):
    learner = make(tmp_path / "policy", lr=1e-3, warmup_steps=4)
    rates = [learner.update(batch_of())["learner/lr"] for _ in range(5)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_a_resumed_learner_goes_on_to_the_bit(tmp_path):
    straight = make(tmp_path / "policy", warmup_steps=3)
    for seed in range(2):
        straight.update(batch_of(seed))
    straight.save(tmp_path / "step-00002")
    drawn = torch.rand(3)
    resumed = make(tmp_path / "policy", warmup_steps=3)
    resumed.resume(tmp_path / "step-00002")
    assert torch.equal(torch.rand(3), drawn)
    for seed in range(2, 4):
        one, other = straight.update(batch_of(seed)), resumed.update(batch_of(seed))
        del one["learner/tokens_per_s"], other["learner/tokens_per_s"]
        assert one == other
    assert (resumed.step, resumed.version) == (4, 4)
    assert all(torch.equal(a, b) for a, b in zip(state(straight), state(resumed), strict=True))


def test_a_checkpoint_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path):
    learner = make(tmp_path / "policy")
    folder = tmp_path / "checkpoints" / "step-00000"
    partial = folder.with_name(".step-00000.partial")
    partial.mkdir(parents=True)
    (partial / "learner.pt").write_bytes(b"torn")
    learner.save(folder)
    learner.update(batch_of())
    learner.save(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["step-00000"]
    fresh = make(tmp_path / "policy")
    fresh.resume(folder)
    assert fresh.version == 1


def test_a_checkpoint_can_be_loaded_as_a_model_and_scored_alike(tmp_path):
    learner = make(tmp_path / "policy")
    learner.update(batch_of())
    learner.save(tmp_path / "step-00001")
    fresh = make(tmp_path / "step-00001")
    assert fresh.evaluate_loss(batch_of(1)) == learner.evaluate_loss(batch_of(1))
    scores = learner.score([1, 4, 9])
    assert torch.equal(fresh.score([1, 4, 9]), scores)
    learner.temperature = 1.0
    torch.testing.assert_close(scores[0], next_token_chances(learner, [1])[4].log())
    torch.testing.assert_close(scores[1], next_token_chances(learner, [1, 4])[9].log())


def test_a_checkpoint_that_is_not_there_or_of_another_model_is_refused(tmp_path):
    learner = make(tmp_path / "policy")
    with pytest.raises(LearnerError, match=r"step-00009.*does not fit"):
        learner.resume(tmp_path / "step-00009")
    learner.save(tmp_path / "one")
    weights = load_file(tmp_path / "one" / "model.safetensors")
    save_file(weights | {"model.norm.weight": torch.ones(3)}, tmp_path / "one" / "model.safetensors")
    seal(tmp_path / "one")
    with pytest.raises(LearnerError, match="does not fit"):
        learner.resume(tmp_path / "one")


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "gone"])
@pytest.mark.parametrize("file", ["learner.pt", "model.safetensors"])
def test_a_damaged_checkpoint_is_refused_with_the_file_that_is(tmp_path, file, damage):
    learner = make(tmp_path / "policy")
    learner.update(batch_of())
    learner.save(tmp_path / "one")
    place = tmp_path / "one" / file
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 64
    if damage == "gone":
        place.unlink()
    else:
        place.write_bytes({"flipped": content, "cut": content[:-9], "empty": b""}[damage])
    before = state(learner)
    with pytest.raises(LearnerError, match=rf"one does not fit.*{file}: gone or damaged.*goes on from the one before"):
        learner.resume(tmp_path / "one")
    assert all(torch.equal(a, b) for a, b in zip(state(learner), before, strict=True))


@pytest.mark.parametrize("content", [b"", b"no archive", {"step": 3}])
def test_a_checkpoint_of_another_version_is_refused(tmp_path, content):
    learner = make(tmp_path / "policy")
    learner.save(tmp_path / "one")
    if isinstance(content, bytes):
        (tmp_path / "one" / "learner.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "one" / "learner.pt")
    (tmp_path / "one" / "checksums.json").unlink()
    with pytest.raises(LearnerError, match="another version of clawexp"):
        learner.resume(tmp_path / "one")


def test_an_export_is_a_checkpoint_with_the_tokenizer_of_the_first(tmp_path):
    learner = make(tmp_path / "policy")
    (tmp_path / "policy" / "tokenizer.json").write_text("{}")
    learner.update(batch_of())
    learner.export(tmp_path / "export")
    read = Policy.load(tmp_path / "export")
    assert all(torch.equal(a, b) for a, b in zip(state(learner), read.parameters(), strict=True))
    assert (tmp_path / "export" / "tokenizer.json").read_text() == "{}"


def test_a_bandit_learns_which_token_is_rewarded(tmp_path):
    folder = tiny_policy(tmp_path / "policy", scale=0.2)
    learner = make(folder, lr=0.01, grad_clip=10.0)
    generator = torch.Generator().manual_seed(0)
    prompt, rewarded = [1, 4], 7
    for _ in range(40):
        chances = next_token_chances(learner, prompt)
        sampled = torch.multinomial(chances, 16, replacement=True, generator=generator).tolist()
        rewards = [float(token == rewarded) for token in sampled]
        names = [f"r{number}" for number in range(16)]
        advantages = learner.algo.worth(rewards, [("task", "builtin")] * 16, [True] * 16)  # pyright: ignore
        trees = [
            grow(rollout([call("c0", prompt, [token], logprobs=(chances[token].log().item(),))], name))
            for name, token in zip(names, sampled, strict=True)
        ]
        batch = pack([merge(trees)], dict(zip(names, advantages, strict=True)))
        metrics = learner.update(batch)
        if not metrics["learner/skipped"]:
            assert metrics["learner/delta_logprob_mean"] < 1e-4
    assert next_token_chances(learner, prompt)[rewarded] > 0.8


def next_token_chances(learner: Learner, prompt: list[int]) -> torch.Tensor:
    """What an engine would sample from."""
    vocab = learner.policy.shape.vocab
    last = len(prompt) - 1
    tokens = TreeTokens(
        input_ids=torch.tensor([*prompt, *range(vocab)]),
        position=torch.tensor([*range(len(prompt)), *[len(prompt)] * vocab]),
        parent=torch.tensor([*range(-1, last), *[last] * vocab]),
    )
    targets = torch.arange(len(prompt), len(prompt) + vocab)
    logprobs = tree_backward(
        learner.policy, tokens, targets, lambda logprob, _: logprob.sum() * 0, learner.temperature, "chain"
    )
    return logprobs.exp()
