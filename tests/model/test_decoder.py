import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from clawexp.errors import ConfigError
from clawexp.model.decoder import Policy
from clawexp.model.tree_pass import TreeTokens, tree_logprobs

IDS = [5, 17, 3, 90, 41, 8, 8, 2]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen3_moe"])
def test_logprobs_are_those_of_transformers(reference, architecture, tied):
    folder, model = reference(architecture, tied)
    assert close(Policy.load(folder), model)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe"])
def test_what_it_saves_is_read_by_transformers_and_by_itself(reference, tmp_path, architecture):
    folder, model = reference(architecture, tied=False)
    policy = Policy.load(folder)
    policy.save(tmp_path / "copy")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)
    assert close(Policy.load(tmp_path / "copy"), model)
    assert [file.name for file in sorted((tmp_path / "copy").iterdir())] == ["config.json", "model.safetensors"]


def test_rope_theta_is_read_where_transformers_4_wrote_it(reference):
    folder, model = reference("llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    assert close(Policy.load(folder), model)


def test_bfloat16_checkpoints_are_computed_in_float32(reference):
    folder, _ = reference()
    weights = load_file(folder / "model.safetensors")
    halves = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(halves, folder / "model.safetensors")
    policy = Policy.load(folder)
    assert {weight.dtype for weight in policy.weights().values()} == {torch.float32}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert close(policy, model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None}, "unnamed"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
    ],
)
def test_maths_that_it_does_not_implement_is_refused(reference, change, reason):
    folder, _ = reference()
    config = json.loads((folder / "config.json").read_text()) | change
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match=reason):
        Policy.load(folder)


def test_weights_that_do_not_fit_change_nothing(reference):
    folder, _ = reference()
    policy = Policy.load(folder)
    before = {name: weight.clone() for name, weight in policy.weights().items()}
    other = {name: weight + 1 for name, weight in before.items()}
    other.pop("model.norm.weight")
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        policy.take(other)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.weights().items())


def close(policy: Policy, model: torch.nn.Module) -> bool:
    count = torch.arange(len(IDS))
    tokens = TreeTokens(torch.tensor(IDS), count, count - 1)
    got = tree_logprobs(policy, tokens, count[1:], 1.0, "chain")
    with torch.no_grad():
        rows = model(torch.tensor([IDS])).logits[0, :-1].log_softmax(-1)
    want = rows.gather(1, torch.tensor(IDS)[1:, None])[:, 0]
    return bool((got - want).abs().max() <= 1e-5)
