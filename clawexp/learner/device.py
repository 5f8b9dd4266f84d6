"""Where a learner computes."""

import torch

from clawexp.errors import ConfigError
from clawexp.spec import LearnerOptions


def device_of(options: LearnerOptions) -> torch.device:
    """Raises ConfigError where torch finds no GPU, and one is asked for."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("learner.device=cuda: torch finds no GPU here. Choose learner.device=auto, or cpu.")
    found = torch.cuda.is_available() if options.device == "auto" else options.device == "cuda"
    return torch.device("cuda" if found else "cpu")


def take_gpu(options: LearnerOptions, rank: int) -> torch.device:
    """The device of one of several ranks, which then is its own. Raises ConfigError where there are too few GPUs."""
    device = device_of(options)
    if device.type == "cuda":
        if torch.cuda.device_count() < options.num_ranks:
            raise ConfigError(
                f"learner.num_ranks={options.num_ranks}: torch finds {torch.cuda.device_count()} GPUs, and each rank "
                "needs one. Choose fewer ranks, or learner.device=cpu."
            )
        torch.cuda.set_device(rank)
    return device
