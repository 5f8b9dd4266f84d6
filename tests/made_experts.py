"""A dense checkpoint -> a mixture of experts that begins as good as it was."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROUTER_SCALE = 0.2
"""Of random routers over normalised hidden states: chances differ, and none is near 1."""


def upcycled(dense: Path, folder: Path, *, number: int = 4, chosen: int = 2, noise: float = 0.02) -> Path:
    """Each expert is the feed-forward layer of the dense model with some relative noise; routers are random."""
    shutil.copytree(dense, folder)
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    weights = {}
    for name, weight in load_file(dense / "model.safetensors").items():
        layer, mlp, part = name.partition(".mlp.")
        if not mlp:
            weights[name] = weight
            continue
        for expert in range(number):
            weights[f"{layer}.mlp.experts.{expert}.{part}"] = weight * (1 + noise * drawn(*weight.shape))
        if part == "gate_proj.weight":
            weights[f"{layer}.mlp.gate.weight"] = ROUTER_SCALE * drawn(number, weight.shape[1])
    config = json.loads((dense / "config.json").read_text())
    config |= {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": number,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": config["intermediate_size"],
        "norm_topk_prob": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
