"""The policy: a float32 decoder of the Qwen3, Qwen3-MoE and Llama architectures, the same code in learner and engine.

Query, key and value projections are one matrix, as are gate and up: fewer and larger products. `weights()` and `save`
speak Hugging Face's names, so that any engine reads what we write.

Shapes: N tokens, H query heads, G key/value heads, D head_dim, I intermediate, V vocabulary.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clawexp.errors import ConfigError
from clawexp.model.checkpoint import Shape, read_config, shape_of
from clawexp.model.experts import Choose, Experts
from clawexp.model.rms_norm import rms_norm
from clawexp.model.tree_policy import Route, See, TreePolicy

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [N, H, D], keys [N, G, D] and values [N, G, D] of one layer -> what the queries saw, [N, H, D]."""


class Layer(nn.Module):
    """One decoder layer, with attention as a callback."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
        self.attention_norm = _parameter(shape.hidden)
        self.qkv = _parameter((heads + 2 * kv_heads) * dim, shape.hidden)
        if shape.architecture == "qwen3":
            self.q_norm = _parameter(dim)
            self.k_norm = _parameter(dim)
        self.o = _parameter(shape.hidden, heads * dim)
        self.mlp_norm = _parameter(shape.hidden)
        self.experts = Experts(shape.experts, shape.hidden) if shape.experts else None
        if self.experts is None:
            self.gate_up = _parameter(2 * shape.intermediate, shape.hidden)
            self.down = _parameter(shape.hidden, shape.intermediate)

    def forward(
        self, hidden: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, choose: Choose | None = None
    ) -> Tensor:
        """[N, hidden] -> [N, hidden]. `rope` is of `Policy.rope`; `choose` is asked where there are experts."""
        shape = self.shape
        qkv = F.linear(rms_norm(hidden, self.attention_norm, shape.eps), self.qkv)
        heads = qkv.view(-1, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        qk, v = heads.split((shape.heads + shape.kv_heads, shape.kv_heads), 1)
        if shape.architecture == "qwen3":
            weight = (self.q_norm.expand(shape.heads, -1), self.k_norm.expand(shape.kv_heads, -1))
            qk = rms_norm(qk, torch.cat(weight), shape.eps)
        q, k = _rotate(qk, rope).split((shape.heads, shape.kv_heads), 1)
        seen = attend(q, k, v)
        hidden = hidden + F.linear(seen.reshape(len(hidden), -1), self.o)
        normal = rms_norm(hidden, self.mlp_norm, shape.eps)
        if self.experts is not None:
            return hidden + self.experts(normal, choose)
        gate, up = F.linear(normal, self.gate_up).chunk(2, -1)
        return hidden + F.linear(F.silu(gate) * up, self.down)

    def parts(self) -> dict[str, Tensor]:
        """The layer's weights by Hugging Face's names; parts of fused matrices are views."""
        shape = self.shape
        rows = [shape.heads * shape.head_dim, *[shape.kv_heads * shape.head_dim] * 2]
        q, k, v = self.qkv.split(rows)
        parts: dict[str, Tensor] = {
            "input_layernorm": self.attention_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": self.o,
            "post_attention_layernorm": self.mlp_norm,
        }
        if self.experts is not None:
            parts |= {f"mlp.{name}": part for name, part in self.experts.parts().items()}
        else:
            gate, up = self.gate_up.chunk(2)
            parts |= {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": self.down}
        if shape.architecture == "qwen3":
            parts |= {"self_attn.q_norm": self.q_norm, "self_attn.k_norm": self.k_norm}
        return parts


class Policy(TreePolicy):
    """A decoder with its head. Made by `Policy.load`."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config = config
        self.shape = shape_of(config)
        self.embedding = _parameter(self.shape.vocab, self.shape.hidden)
        self.layers: list[Layer] = []
        for number in range(self.shape.layers):
            layer = Layer(self.shape)
            self.add_module(f"layer{number}", layer)
            self.layers.append(layer)
        self.norm = _parameter(self.shape.hidden)
        self.untied_head = None if self.shape.tied else _parameter(self.shape.vocab, self.shape.hidden)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a checkpoint folder (`config.json`, `model.safetensors`) as float32. Raises ConfigError."""
        policy = cls(read_config(folder))
        policy.take(read_weights(folder))
        return policy

    @property
    def head(self) -> Tensor:
        """[V, hidden]; the embedding itself where they are tied."""
        return self.embedding if self.untied_head is None else self.untied_head

    def rope(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [N, 1, D] of positions [N]; angles in float32 as the released models had them."""
        dim = self.shape.head_dim
        exponents = torch.arange(0, dim, 2, device=position.device).float() / dim
        angles = position.float()[:, None, None] * (1.0 / self.shape.rope_theta**exponents)
        cos, sin = angles.cos(), angles.sin()
        rope = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return rope[0].to(self.embedding.dtype), rope[1].to(self.embedding.dtype)

    def states(
        self, ids: Tensor, position: Tensor, see: See, checkpointing: bool, route: Route | None = None
    ) -> Tensor:
        """See `TreePolicy`."""
        hidden, rope = self.embed(ids), self.rope(position)
        for number, layer in enumerate(self.layers):
            choose = None if route is None else functools.partial(route, number)
            step = (layer, hidden, rope, functools.partial(see, number), choose)
            if checkpointing and torch.is_grad_enabled():
                hidden = cast(Tensor, checkpoint(*step, use_reentrant=False, preserve_rng_state=False))
            else:
                hidden = layer(*step[1:])
        return self.final(hidden)

    def embed(self, ids: Tensor) -> Tensor:
        """[N] -> [N, hidden]."""
        return F.embedding(ids, self.embedding)

    def final(self, hidden: Tensor) -> Tensor:
        """Normalise the last layer's output: what `head` reads."""
        return rms_norm(hidden, self.norm, self.shape.eps)

    def logits(self, final: Tensor) -> Tensor:
        """[N, hidden] as of `final` -> [N, V]."""
        return F.linear(final, self.head)

    def weights(self) -> dict[str, Tensor]:
        """All weights by Hugging Face's names, detached; they are views of the live parameters."""
        named: dict[str, Tensor] = {"model.embed_tokens.weight": self.embedding}
        for number, layer in enumerate(self.layers):
            named |= {f"model.layers.{number}.{name}.weight": part for name, part in layer.parts().items()}
        named["model.norm.weight"] = self.norm
        if self.untied_head is not None:
            named["lm_head.weight"] = self.untied_head
        return {name: weight.detach() for name, weight in named.items()}

    def take(self, weights: dict[str, Tensor]) -> None:
        """Copy weights in place. Nothing is changed if a name or a shape does not fit: then ConfigError."""
        mine = self.weights()
        given = {name: weights[name] for name in weights if not (self.shape.tied and name == "lm_head.weight")}
        wrong = sorted(mine.keys() ^ given.keys())
        wrong += [name for name in mine.keys() & given.keys() if mine[name].shape != given[name].shape]
        if wrong:
            raise ConfigError(f"{len(wrong)} weights are missing, unknown or of another shape: {wrong[:4]}")
        for name, weight in mine.items():
            weight.copy_(given[name])

    def save(self, folder: Path) -> None:
        """Write `model.safetensors` and `config.json`, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".model.safetensors.{os.getpid()}"
        tensors = {name: weight.clone() for name, weight in self.weights().items()}
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.replace(folder / "model.safetensors")
        partial = folder / f".config.json.{os.getpid()}"
        partial.write_text(json.dumps(self.config, indent=2) + "\n")
        partial.replace(folder / "config.json")


def read_weights(folder: Path, name: str = "model.safetensors") -> dict[str, Tensor]:
    """The tensors of a checkpoint. Raises ConfigError."""
    file = folder / name
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _parameter(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size, dtype=torch.float32))


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (i, i + D/2) of [N, heads, D]."""
    cos, sin = rope
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((second, first), -1), sin)
