"""clawexp trains a language model by reinforcement learning through an agent harness it cannot see inside."""

__version__ = "0.1.0"
