"""Low-rank adapters (LoRA, by peft) on a model of transformers: they alone are trained, all else stays as it was.

Needs the extra `lora`. What an engine is given has them merged in; what a learner goes on from are the adapters
themselves, since they cannot be told from merged weights to the bit.
"""

import os
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from clawexp.errors import ConfigError
from clawexp.model.hub_policy import HubPolicy
from clawexp.spec import LoraOptions

ADAPTER = "default"
BASE = "base_layer."
"""What peft puts into the names of weights that it wraps."""


class LoraPolicy(HubPolicy):
    """Made by `LoraPolicy.adapted`."""

    file = "adapter.safetensors"

    @classmethod
    def adapted(cls, folder: Path, options: LoraOptions) -> "LoraPolicy":
        """Read a checkpoint folder as float32, and add adapters that change nothing yet. Raises ConfigError."""
        policy = cls.load(folder)
        _inject(policy.model, options)
        return policy

    def take(self, weights: dict[str, Tensor]) -> None:
        """Copy weights of adapters in place. Raises ConfigError, and changes nothing, if they misfit."""
        mine = self._adapters()
        wrong = sorted(mine.keys() ^ weights.keys())
        wrong += [name for name in mine.keys() & weights.keys() if mine[name].shape != weights[name].shape]
        if wrong:
            raise ConfigError(f"{len(wrong)} weights of adapters are missing, unknown or of another shape: {wrong[:4]}")
        with torch.no_grad():
            for name, weight in mine.items():
                weight.copy_(weights[name])

    def save(self, folder: Path) -> None:
        """Write the merged model, and beside it the adapters."""
        super().save(folder)
        partial = folder / f".{self.file}.{os.getpid()}"
        save_file({name: weight.detach().clone() for name, weight in self._adapters().items()}, partial)
        partial.replace(folder / self.file)

    def _adapters(self) -> dict[str, Tensor]:
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def _weights(self) -> dict[str, Tensor]:
        """Merged into copies: merging in place and back would change the last bits."""
        weights = {name: weight for name, weight in super()._weights().items() if ".lora_" not in name}
        for name, module in self.model.named_modules():
            if isinstance(module, LoraLayer):
                weights[f"{name}.{BASE}weight"] = weights[f"{name}.{BASE}weight"] + _delta(module)
        return {name.replace(BASE, ""): weight for name, weight in weights.items()}


def _inject(model: PreTrainedModel, options: LoraOptions) -> None:
    targets = options.targets if isinstance(options.targets, str) else list(options.targets)
    config = LoraConfig(r=options.rank, lora_alpha=options.alpha, target_modules=targets, lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):  # the same beginning each time, whoever drew before
        torch.manual_seed(0)
        try:
            inject_adapter_in_model(config, model, ADAPTER)
        except ValueError as error:
            raise ConfigError(f"learner.lora.targets={options.targets!r}: {error}") from error
    injected = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    if not isinstance(targets, str) and (lost := sorted({name.rpartition(".")[2] for name in targets} - injected)):
        raise ConfigError(f"learner.lora.targets: the model has no linear layers {lost}; it has {sorted(injected)}")
    ends = {"embedding": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    if wrapped := [name for name, module in ends.items() if isinstance(module, LoraLayer)]:
        raise ConfigError(
            f"learner.lora.targets: the {' and the '.join(wrapped)} cannot have adapters; name linear layers between "
            "them, or all-linear"
        )


@torch.no_grad()
def _delta(module: LoraLayer) -> Tensor:
    return module.get_delta_weight(ADAPTER)  # pyright: ignore[reportAttributeAccessIssue]
