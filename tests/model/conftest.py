from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 512,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
Reference = Callable[..., tuple[Path, PreTrainedModel]]


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    """A tiny random checkpoint and the model that transformers makes of it."""

    def make(architecture: str = "qwen3", tied: bool = True, **other: Any) -> tuple[Path, PreTrainedModel]:
        torch.manual_seed(0)
        if architecture == "qwen3":
            config = Qwen3Config(
                **SIZE,
                head_dim=16,
                tie_word_embeddings=tied,
                rope_parameters=rope(1e6),
                initializer_range=0.2,
            )
            model = Qwen3ForCausalLM(config)
        elif architecture == "qwen3_moe":
            size: dict[str, Any] = SIZE | EXPERTS | {"head_dim": 16} | other
            config = Qwen3MoeConfig(
                **size,
                tie_word_embeddings=tied,
                rope_parameters=rope(1e6),
                initializer_range=0.2,
            )
            model = Qwen3MoeForCausalLM(config)
        else:
            config = LlamaConfig(**SIZE, tie_word_embeddings=tied, rope_parameters=rope(1e5), initializer_range=0.2)
            model = LlamaForCausalLM(config)
        for name, weight in model.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(weight, 0.5, 1.5)
        folder = tmp_path / f"{architecture}-{tied}"
        model.save_pretrained(folder)
        return folder, model.eval()

    return make


def rope(theta: float) -> dict:
    return {"rope_type": "default", "rope_theta": theta}
