"""How a rollout ended, and what that is worth: the one table both algorithms and every report use."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a rollout ended."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    """A limit on turns, tokens or time ended it; what it left is graded."""
    PARSE_FAULT = "parse_fault"
    """The model's last word was a malformed tool call."""
    POLICY_FAULT = "policy_fault"
    """The harness gave up because of what the model said."""
    HARNESS_FAULT = "harness_fault"
    """The harness crashed, or made no model call at all."""
    RUNTIME_FAULT = "runtime_fault"
    ENGINE_FAULT = "engine_fault"
    GRADER_FAULT = "grader_fault"
    """No verdict. Never a reward of 0."""
    CAPTURE_FAULT = "capture_fault"
    REWARD_HACK = "reward_hack"


class Credit(StrEnum):
    """What the learner does with a rollout that ended so."""

    REWARD = "reward"
    """Train on it with its reward."""
    ZERO = "zero"
    """Train on it with a reward of 0."""
    EXCLUDE = "exclude"
    """Leave it out of the loss and of the baseline."""
    RETRY = "retry"
    """Run it again, up to `rollout.retries` times, then leave it out."""
    ABORT = "abort"
    """End the run."""


TRAINED = frozenset({Credit.REWARD, Credit.ZERO})
