import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SIZE
from path_passes import TEMPERATURE, all_but_roots, forest, mixed_signs, per_path, weighted
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from clawexp.errors import ConfigError
from clawexp.model import tree_pass
from clawexp.model.checkpoint import read_config
from clawexp.model.decoder import Policy, read_weights
from clawexp.model.hub_policy import HubPolicy
from clawexp.model.load import load_policy
from clawexp.model.tree_pass import Mode, tree_backward

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gemma": (GemmaConfig, GemmaForCausalLM, {"head_dim": 16}),
    "phi3": (Phi3Config, Phi3ForCausalLM, {"partial_rotary_factor": 0.5}),
    "experts": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"head_dim": 16, **EXPERTS}),
    "windows": (MistralConfig, MistralForCausalLM, {"sliding_window": 6}),
    "capped scores": (Gemma2Config, Gemma2ForCausalLM, {"head_dim": 16}),
    "scaled logits": (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 3.0}),
}
PLAIN = pytest.mark.parametrize("name", ["gemma", "phi3", "experts"])


def model_of(name: str) -> PreTrainedModel:
    """Tiny, with random weights."""
    torch.manual_seed(0)
    config, model, other = MODELS[name]
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    return model(config(**SIZE | other | tokens, initializer_range=0.2)).eval()


@PLAIN
@pytest.mark.parametrize("mode", ["chain", "dfs"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_equal_those_of_one_pass_per_path_by_transformers(name, mode, checkpointing, monkeypatch):
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", 10)
    found, want, error = compared(name, mode, checkpointing)
    torch.testing.assert_close(found, want, rtol=0, atol=2e-5)
    assert error <= 1e-5


def compared(name: str, mode: Mode, checkpointing: bool) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Logprobs of trees and of paths, and how far their gradients are apart, relative."""
    policy, model = HubPolicy(model_of(name)), model_of(name)
    tokens, targets, weights = forest(seed=3), all_but_roots(forest(seed=3)), mixed_signs(3)
    loss = weighted(weights)
    found = tree_backward(policy, tokens, targets, loss, TEMPERATURE, mode, checkpointing=checkpointing)
    want = per_path(model, tokens, targets, weights)
    grads = [
        torch.cat([weight.grad.flatten() for weight in each.parameters() if weight.grad is not None])
        for each in (policy, model)
    ]
    return found, want, float((grads[0] - grads[1]).norm() / grads[1].norm())


@pytest.mark.parametrize(("name", "reason"), [("windows", "sliding_window 6"), ("capped scores", "softcap")])
def test_attention_that_a_tree_has_not_is_refused(name, reason):
    with pytest.raises(ConfigError, match=reason):
        HubPolicy(model_of(name))


def test_a_head_that_is_more_than_a_matrix_is_refused():
    with pytest.raises(ConfigError, match=r"GraniteForCausalLM: .* logits that differ"):
        HubPolicy(model_of("scaled logits"))


@PLAIN
def test_what_it_saves_is_read_by_transformers_and_by_itself(name, tmp_path):
    policy, other = HubPolicy(model_of(name)), HubPolicy(model_of(name))
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.1
    policy.save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    other.take(read_weights(tmp_path))
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for weight, taken, read in zip(policy.parameters(), other.parameters(), again.parameters(), strict=True):
        assert torch.equal(weight, taken)
        assert torch.equal(weight, read)


def test_weights_that_do_not_fit_change_nothing():
    policy = HubPolicy(model_of("gemma"))
    before = [weight.clone() for weight in policy.parameters()]
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        policy.take(
            {name: weight + 1 for name, weight in policy.model.state_dict().items() if "model.norm" not in name}
        )
    assert all(torch.equal(weight, old) for weight, old in zip(policy.parameters(), before, strict=True))


def test_a_checkpoint_is_loaded_by_whom_it_belongs_to(reference, tmp_path):
    folder, _ = reference()
    assert isinstance(load_policy(folder), Policy)
    model_of("gemma").save_pretrained(tmp_path / "gemma")
    policy = load_policy(tmp_path / "gemma")
    assert isinstance(policy, HubPolicy)
    assert policy.shape.architecture == read_config(tmp_path / "gemma")["architectures"][0] == "GemmaForCausalLM"


def test_what_the_decoder_lacks_of_its_own_architectures_transformers_has(reference):
    folder, _ = reference("llama")
    config = read_config(folder) | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5}}
    (folder / "config.json").write_text(json.dumps(config))
    assert isinstance(load_policy(folder), HubPolicy)


def test_a_checkpoint_that_transformers_cannot_read_is_named(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"architectures": ["Nobody"], "model_type": "nobody"}')
    with pytest.raises(ConfigError, match=f"cannot load {tmp_path}"):
        load_policy(tmp_path)
