"""Decoders of the Qwen3 shape with random weights, and what a pass over them costs."""

import torch

from clawexp.model.decoder import Policy
from trees.workloads import Arm

SIZES: dict[str, dict[str, int]] = {
    "5m": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 5, "heads": 4, "vocab_size": 4096},
    "30m": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "heads": 8, "vocab_size": 8192},
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "heads": 9, "vocab_size": 49152},
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "heads": 16,
             "vocab_size": 151936},
}  # fmt: skip
KV_HEADS = {"5m": 2, "30m": 2, "135m": 3, "0.6b": 8}
HEAD_DIM = {"5m": 64, "30m": 64, "135m": 64, "0.6b": 128}


def config(name: str) -> dict:
    """As `config.json` has it."""
    size = dict(SIZES[name])
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_attention_heads": size.pop("heads"),
        "num_key_value_heads": KV_HEADS[name],
        "head_dim": HEAD_DIM[name],
        "hidden_act": "silu",
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "tie_word_embeddings": True,
        **size,
    }


def random_policy(name: str) -> Policy:
    """The same weights each time."""
    policy, generator = Policy(config(name)), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, weight in policy.named_parameters():
            weight.copy_(torch.ones(weight.shape) if "norm" in key else 0.02 * _noise(weight, generator))
    return policy


def _noise(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(weight.shape, generator=generator)


def flops(policy: Policy, arm: Arm) -> float:
    """Of forward and backward: 6 for each weight of the layers and token, 12 layers x width for each query and key that
    it sees, and 8 for each weight of the head and target, whose logits are computed again in the backward pass."""
    shape = policy.shape
    layers = sum(weight.numel() for layer in policy.layers for weight in layer.parameters() if weight.dim() == 2)
    attention = 12 * shape.layers * shape.heads * shape.head_dim
    head = 8 * shape.vocab * shape.hidden
    return 6.0 * layers * arm.num_tokens + float(attention) * arm.num_pairs + float(head) * len(arm.targets)
