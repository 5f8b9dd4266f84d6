"""Any causal language model of transformers as a policy: its layers, our attention over trees.

The attention is put in by transformers' registry of attention functions. It stands for plain softmax attention; what a
model does besides (windows, sinks, capped scores or logits, a bias by distance) is refused, by name or because its
logits differ from transformers' own when it is loaded.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.utils.logging import disable_progress_bar

from clawexp.errors import ConfigError
from clawexp.model.checkpoint import FILES, Shape
from clawexp.model.tree_attention import tree_attention
from clawexp.model.tree_plan import blocks_of
from clawexp.model.tree_policy import Route, See, TreePolicy

ATTENTION = "clawexp_tree"
REFUSED = ("softcap", "s_aux", "position_bias")
"""What else an attention function may be asked for."""
UNSTABLE_ROPE = ("dynamic", "longrope")
"""Angles that depend on the longest sequence computed with a token, not on the token alone."""
PROBE = 12
TOLERANCE = 1e-3


class HubPolicy(TreePolicy):
    """Made by `HubPolicy.load`."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Takes the model over. Raises ConfigError where trees cannot be computed with it."""
        super().__init__()
        model.eval()  # no dropout: what is learned from is what was sampled
        self.shape = _shape(model)
        want = _own_logits(model)
        model.set_attn_implementation(ATTENTION)
        self.model = model
        weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._kept_buffers = [name for name in model.state_dict() if name not in weights]
        off = float((self._probe() - want).abs().max())
        if off > TOLERANCE:
            raise ConfigError(
                f"{self.shape.architecture}: attention over trees gives logits that differ by {off:.2g} from those of "
                "transformers, so it is not plain attention below a plain head. Choose another model."
            )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a checkpoint folder as float32. Raises ConfigError."""
        disable_progress_bar()
        try:
            return cls(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"transformers cannot load {folder}: {error}") from error

    @property
    def embedding(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `TreePolicy`."""
        return self.model.get_input_embeddings().weight  # pyright: ignore[reportReturnType]

    @property
    def head(self) -> Tensor:
        """See `TreePolicy`."""
        return _head(self.model)

    def states(
        self, ids: Tensor, position: Tensor, see: See, checkpointing: bool, route: Route | None = None
    ) -> Tensor:
        """See `TreePolicy`."""
        seen: set[int] = set()

        def attend(number: int, *qkv: Tensor) -> Tensor:
            seen.add(number)
            return see(number, *qkv)

        self._checkpoint(checkpointing)
        decoder = self.model.get_decoder()
        depth = int(position.max()) + 1
        found = decoder(
            input_ids=ids[None], position_ids=position[None], use_cache=False, tree_see=attend, tree_depth=depth
        )
        if len(seen) != self.shape.layers:
            raise ConfigError(
                f"{self.shape.architecture}: {len(seen)} of {self.shape.layers} layers take their attention from "
                "transformers' registry, so trees cannot be computed with it. Choose another model."
            )
        return found.last_hidden_state[0]

    def take(self, weights: dict[str, Tensor]) -> None:
        """See `TreePolicy`. transformers translates names that it has otherwise in memory than in files."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded: Any = type(self.model).from_pretrained(
                None, config=self.model.config, state_dict=weights, output_loading_info=True
            )
        given, report = loaded
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
        wrong = sorted(str(key) for kind in kinds for key in report[kind])
        if wrong:
            raise ConfigError(f"{len(wrong)} weights are missing, unknown or of another shape: {wrong[:4]}")
        with torch.no_grad():
            for mine, new in zip(self.parameters(), given.parameters(), strict=True):
                mine.copy_(new)

    def save(self, folder: Path) -> None:
        """See `TreePolicy`."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as partial:
            self.model.save_pretrained(partial, state_dict=self._weights(), max_shard_size="1TB")
            for file in FILES:
                (Path(partial) / file).replace(folder / file)

    def _weights(self) -> dict[str, Tensor]:
        """All that is saved, by the names in memory. Of several ranks `state_dict` would say shards."""
        weights: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        return weights | {name: self.model.get_buffer(name) for name in self._kept_buffers}

    def _checkpoint(self, wanted: bool) -> None:
        if wanted != self.model.is_gradient_checkpointing:
            if wanted:
                self.model.gradient_checkpointing_enable({"use_reentrant": False})
            else:
                self.model.gradient_checkpointing_disable()
        self.model.train(wanted)  # checkpoints are made in this mode alone

    @torch.no_grad()
    def _probe(self) -> Tensor:
        position = torch.arange(PROBE)
        blocks = blocks_of(position.numpy() - 1)

        def see(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return tree_attention(q, k, v, blocks, None)

        return self.states(position % self.shape.vocab, position, see, False) @ self.head.T


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    tree_see: Any = None,
    tree_depth: int = 0,
    **other: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: queries [1, H, N, D], keys and values [1, G, N, D] -> [1, N, H, D]."""
    beyond = [name for name in REFUSED if other.get(name) is not None]
    if sliding_window is not None and tree_depth > sliding_window:
        beyond.append(f"sliding_window {sliding_window} in a tree of depth {tree_depth}")
    if beyond or key.shape[-1] != value.shape[-1]:
        raise ConfigError(f"the model's attention has {beyond or 'values of another width'}, and a tree's has not")
    if scaling is not None:  # ours divides by the root of the width
        query = query * (scaling * query.shape[-1] ** 0.5)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return tree_see(module.layer_idx, q, k, v)[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """The attention knows itself who sees whom."""


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)


@torch.no_grad()
def _own_logits(model: PreTrainedModel) -> Tensor:
    """By transformers alone, of a sequence as in `_probe`."""
    ids = torch.arange(PROBE) % len(_head(model))
    return model(input_ids=ids[None], use_cache=False).logits[0]


def _head(model: PreTrainedModel) -> Tensor:
    head: Any = model.get_output_embeddings()
    if head is None:
        raise ConfigError(f"{type(model).__name__} has no head over its vocabulary. Choose a causal language model.")
    return head.weight


def _shape(model: PreTrainedModel) -> Shape:
    config = model.config
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in UNSTABLE_ROPE:
        raise ConfigError(f"config.json asks for rope_type {rope['rope_type']!r}, whose angles depend on the length")
    return Shape(
        architecture=type(model).__name__,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocab=len(_head(model)),
        eps=0.0,
        rope_theta=rope.get("rope_theta", 0.0),
        tied=bool(config.tie_word_embeddings),
    )
