"""A checkpoint folder -> a policy to train: by our own decoder where it implements all of it, else by transformers."""

from pathlib import Path

from clawexp.errors import ConfigError
from clawexp.model.checkpoint import other_than_ours, read_config
from clawexp.model.decoder import Policy
from clawexp.model.tree_policy import TreePolicy
from clawexp.spec import LoraOptions


def load_policy(folder: Path, lora: LoraOptions | None = None) -> TreePolicy:
    """In float32. With `lora` it is computed by transformers, whatever it is, and has adapters.

    Raises ConfigError where it cannot be read, or its attention cannot be a tree's.
    """
    if lora is not None:
        return _with_adapters(folder, lora)
    if not other_than_ours(read_config(folder)):
        return Policy.load(folder)
    try:
        from clawexp.model.hub_policy import HubPolicy
    except ImportError as error:
        raise ConfigError(
            f"{folder} is of a kind that transformers computes, and {error.name} is missing; install it "
            "with: pip install 'clawexp[hub]'"
        ) from error
    return HubPolicy.load(folder)


def _with_adapters(folder: Path, lora: LoraOptions) -> TreePolicy:
    try:
        from clawexp.model.lora import LoraPolicy
    except ImportError as error:
        raise ConfigError(
            f"learner.lora: {error.name} is missing; install it with: pip install 'clawexp[lora]'"
        ) from error
    return LoraPolicy.adapted(folder, lora)
