"""A checkpoint folder -> a policy to train: our own decoder where it has that architecture, else by transformers."""

from pathlib import Path

from clawexp.errors import ConfigError
from clawexp.model.checkpoint import ARCHITECTURES, read_config
from clawexp.model.decoder import Policy
from clawexp.model.tree_policy import TreePolicy


def load_policy(folder: Path) -> TreePolicy:
    """In float32. Raises ConfigError where it cannot be read, or its attention cannot be a tree's."""
    if set(read_config(folder).get("architectures") or []) & ARCHITECTURES.keys():
        return Policy.load(folder)
    try:
        from clawexp.model.hub_policy import HubPolicy
    except ImportError as error:
        raise ConfigError(
            f"{folder} is of an architecture that transformers computes, and {error.name} is missing; install it "
            "with: pip install 'clawexp[hub]'"
        ) from error
    return HubPolicy.load(folder)
