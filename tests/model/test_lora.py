import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import SIZE
from made_rollouts import random_trees, tiny_policy
from path_passes import TEMPERATURE, all_but_roots, forest, mixed_signs, weighted
from safetensors.torch import load_file
from torch import Tensor
from transformers import GemmaConfig, GemmaForCausalLM

from clawexp.algo.grpo import Grpo
from clawexp.batch.pack import pack
from clawexp.errors import ConfigError
from clawexp.learner.learner import Learner
from clawexp.model.decoder import Policy, read_weights
from clawexp.model.load import load_policy
from clawexp.model.lora import LoraPolicy
from clawexp.model.tree_pass import tree_backward, tree_logprobs
from clawexp.model.tree_policy import TreePolicy
from clawexp.spec import LearnerOptions, LoraOptions
from clawexp.tree.forest import merge

CONF = Path(__file__).parents[2] / "conf"


def options(**other: Any) -> LoraOptions:
    return LoraOptions(**{"rank": 4, "alpha": 8, "targets": "all-linear"} | other)


def moved(folder: Path, **other: Any) -> TreePolicy:
    """A policy whose adapters say something."""
    policy = load_policy(folder, options(**other))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return policy


def logprobs(policy: TreePolicy) -> Tensor:
    tokens = forest(seed=3)
    return tree_logprobs(policy, tokens, all_but_roots(tokens), TEMPERATURE, "chain")


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_adapters_change_nothing_at_first_and_then_what_they_are_merged_to(reference, tmp_path, architecture):
    folder, _ = reference(architecture)
    base = logprobs(Policy.load(folder))
    torch.testing.assert_close(logprobs(load_policy(folder, options())), base, rtol=0, atol=1e-5)
    policy = moved(folder)
    found = logprobs(policy)
    assert float((found - base).abs().max()) > 0.1
    policy.save(tmp_path / "saved")
    torch.testing.assert_close(logprobs(Policy.load(tmp_path / "saved")), found, rtol=0, atol=2e-4)
    assert torch.equal(logprobs(policy), found)
    before, after = (load_file(where / "model.safetensors") for where in (folder, tmp_path / "saved"))
    assert {name for name in before if torch.equal(before[name], after[name])} == {
        name for name in before if "proj" not in name
    }


def test_an_untied_model_and_one_of_another_architecture_are_saved_whole(reference, tmp_path):
    torch.manual_seed(0)
    size: dict[str, Any] = SIZE | {"head_dim": 16, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    GemmaForCausalLM(GemmaConfig(**size)).save_pretrained(tmp_path / "gemma")
    for folder in (reference("qwen3", tied=False)[0], tmp_path / "gemma"):
        policy = moved(folder)
        policy.save(tmp_path / "saved")
        again = load_policy(tmp_path / "saved")
        torch.testing.assert_close(logprobs(again), logprobs(policy), rtol=0, atol=2e-4)


def test_adapters_are_taken_back_to_the_bit(reference, tmp_path):
    folder, _ = reference()
    policy = moved(folder)
    policy.save(tmp_path / "saved")
    other = load_policy(folder, options())
    other.take(read_weights(tmp_path / "saved", other.file))
    assert torch.equal(logprobs(other), logprobs(policy))
    smaller = load_policy(folder, options(rank=2))
    with pytest.raises(ConfigError, match="weights of adapters are missing"):
        smaller.take(read_weights(tmp_path / "saved", other.file))


@pytest.mark.parametrize("mode", ["chain", "dfs"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "v_proj"), ("o_proj",)])
def test_only_adapters_have_gradients_and_they_are_those_of_any_pass(reference, mode, checkpointing, targets):
    policy, other = (moved(reference()[0], targets=targets) for _ in range(2))
    tokens, weights = forest(seed=3), mixed_signs(3)
    targets = all_but_roots(tokens)
    tree_backward(policy, tokens, targets, weighted(weights), TEMPERATURE, mode, checkpointing=checkpointing)
    tree_backward(other, tokens, targets, weighted(weights), TEMPERATURE, "chain")
    trained = {name for name, weight in policy.named_parameters() if weight.grad is not None}
    assert trained == {name for name, _ in policy.named_parameters() if ".lora_" in name}
    found, want = (
        torch.cat([weight.grad.flatten() for weight in each.parameters() if weight.grad is not None])
        for each in (policy, other)
    )
    assert float((found - want).norm() / want.norm()) <= 1e-5


def test_chosen_layers_alone_have_adapters(reference):
    policy = load_policy(reference()[0], options(targets=("q_proj", "v_proj")))
    assert isinstance(policy, LoraPolicy)
    names = {name.split(".")[-4] for name, weight in policy.named_parameters() if weight.requires_grad}
    assert names == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (("nowhere",), "learner.lora.targets=.*nowhere"),
        (("q_proj", "vproj"), r"no linear layers \['vproj'\]; it has \['q_proj'\]"),
        (("lm_head",), "the head cannot have"),
    ],
)
def test_layers_that_cannot_have_adapters_are_named(reference, targets, reason):
    with pytest.raises(ConfigError, match=reason):
        load_policy(reference("qwen3", tied=False)[0], options(targets=targets))


def test_a_missing_package_is_named_with_its_cure(reference, monkeypatch):
    monkeypatch.delitem(sys.modules, "clawexp.model.lora")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"peft is missing; install it with: pip install 'clawexp\[lora\]'"):
        load_policy(reference()[0], options())


def configured(file: str, **other: Any) -> dict[str, Any]:
    fields = yaml.safe_load((CONF / file).read_text())
    fields.pop("_target_", None)
    return fields | other


def learner(folder: Path) -> Learner:
    if not folder.exists():
        tiny_policy(folder, model_type="qwen3")  # which transformers asks for
    lora = configured("learner/lora.yaml")["lora"]
    del lora["_target_"]
    options = LearnerOptions(**configured("learner/default.yaml", lora=LoraOptions(**lora)))
    return Learner(options, folder, Grpo(**configured("algo/grpo.yaml", lr=1e-2, reference_kl=0.1)), temperature=0.8)


def batch(seed: int):
    trees = random_trees(seed)
    return pack([merge(trees)], {f"r{n}": n - 1.5 for n in range(len(trees))})


def test_it_learns_and_goes_on_from_a_checkpoint_to_the_bit(tmp_path):
    one = learner(tmp_path / "policy")
    for seed in (0, 10):
        assert one.update(batch(seed))["learner/grad_norm"] > 0
    one.save(tmp_path / "half")
    want = [one.update(batch(seed)) for seed in (20, 30)]
    one.export(tmp_path / "one")
    other = learner(tmp_path / "policy")
    other.resume(tmp_path / "half")
    for before, seed in zip(want, (20, 30), strict=True):
        after = other.update(batch(seed))
        assert {**after, "learner/tokens_per_s": 0} == {**before, "learner/tokens_per_s": 0}
    other.export(tmp_path / "other")
    for file in ("model.safetensors", "adapter.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_what_is_exported_is_the_merged_model_and_its_base_has_not_moved(tmp_path):
    one = learner(tmp_path / "policy")
    for seed in (0, 10):
        one.update(batch(seed))
    one.export(tmp_path / "merged")
    served = Learner(one.options, tmp_path / "policy", one.algo, 0.8)
    served.policy = Policy.load(tmp_path / "merged")
    ids = [1, 2, 3, 4, 5]
    assert float((served.score(ids) - one.score(ids)).abs().max()) < 1e-5
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("policy", "merged"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved == {name for name in before if "_proj" in name}
