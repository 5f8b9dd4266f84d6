"""Where a model's checkpoint folder lies, and what its `config.json` says. No torch."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clawexp.cache import cache_folder
from clawexp.errors import ConfigError

FILES = ("config.json", "model.safetensors")
ARCHITECTURES: dict[str, Literal["qwen3", "llama"]] = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3",
    "LlamaForCausalLM": "llama",
}
EXPERT_COUNT = re.compile(r"(moe_)?(n|num)_(\w+_)?experts")
"""`num_experts`, `num_local_experts`, `n_routed_experts`, `moe_num_experts`, ..."""
# Switches of these architectures that change the maths, with the only value that the decoder implements.
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "rope_interleaved": False,
    "partial_rotary_factor": 1.0,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def checkpoint_folder(path: str) -> Path:
    """The folder that `model.path` names.

    `package:NAME` ships with clawexp, `cache:NAME` lies in the user's cache, anything else is an absolute path.
    Raises ConfigError where it is not there or not complete.
    """
    kind, _, name = path.partition(":")
    if kind == "package":
        folder = Path(__file__).parents[1] / "checkpoints" / name
    elif kind == "cache":
        folder = converted_folder(path)
    else:
        folder = Path(path)
        if not folder.is_absolute():
            raise ConfigError(f"model.path {path!r} is neither absolute nor package:NAME nor cache:NAME")
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        cure = f"run: python -m clawexp prepare model={name}" if kind == "cache" else "check model.path"
        raise ConfigError(f"model.path {path!r}: no {' and no '.join(missing)} in {folder}; {cure}")
    return folder


def converted_folder(path: str) -> Path:
    """The folder of `cache:NAME`, whether it is there or not."""
    return cache_folder("models") / path.partition(":")[2]


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """The numbers of a sparse feed-forward layer; all layers have one then."""

    number: int
    """Experts of a layer."""
    chosen: int
    """Of them, for each token."""
    intermediate: int
    """Of one expert."""
    normalised: bool
    """The weights of the chosen ones add up to 1."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of a decoder, as `config.json` has them."""

    architecture: str
    """`qwen3` and `llama` are the decoder's own; others are computed by transformers."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    rope_theta: float
    tied: bool
    experts: ExpertShape | None = None
    """None where all feed-forward layers are dense, or computed by transformers."""


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json` of a checkpoint folder. Raises ConfigError."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} holds no JSON object")
    return config


def shape_of(config: dict[str, Any]) -> Shape:
    """Read a Hugging Face config (of transformers 4 or 5). Raises ConfigError where we would compute something else."""
    names = config.get("architectures") or []
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ConfigError(
            f"architecture {names or 'unnamed'} is not implemented; choose one of {known}, or model/engine=vllm"
        )
    if wrong := other_maths(config):
        raise ConfigError(f"config.json asks for {wrong}, which the decoder does not implement")
    try:
        return Shape(
            architecture=ARCHITECTURES[names[0]],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            eps=config["rms_norm_eps"],
            rope_theta=_rope(config)["rope_theta"],
            tied=config.get("tie_word_embeddings", False),
            experts=_experts(config) if names[0] == "Qwen3MoeForCausalLM" else None,
        )
    except KeyError as error:
        raise ConfigError(f"config.json lacks {error.args[0]!r}") from error


def has_experts(config: dict[str, Any]) -> bool:
    """Whether a router chooses among experts, in any architecture: each has its own name for how many there are."""
    inner = [value for value in config.values() if isinstance(value, dict)]
    return any(EXPERT_COUNT.fullmatch(str(key)) and config[key] for key in config) or any(map(has_experts, inner))


def _experts(config: dict[str, Any]) -> ExpertShape:
    """Raises KeyError."""
    return ExpertShape(
        number=config.get("num_experts") or config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        normalised=config.get("norm_topk_prob", False),
    )


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}


def other_than_ours(config: dict[str, Any]) -> bool:
    """Whether the decoder does not implement all of a model."""
    return not set(config.get("architectures") or []) & ARCHITECTURES.keys() or bool(other_maths(config))


def other_maths(config: dict[str, Any]) -> dict[str, Any]:
    """What a config of the decoder's architectures asks for that the decoder does not implement."""
    found = _rope(config)
    wrong = {key: found[key] for key, value in FIXED.items() if found.get(key) not in (value, None)}
    rope_type = found.get("rope_type") or found.get("type") or "default"
    if rope_type != "default":
        wrong["rope_type"] = rope_type
    return wrong
