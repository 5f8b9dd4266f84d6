"""Proximal policy optimisation over prefix trees, with a critic that reads the policy's hidden states.

ClawGym II (arXiv:2608.16798) describes a Tree-PPO whose advantage is the return less the value, on every branch alike;
that is `advantage: paper` here. `segment` departs from it: generalised advantage estimation along the path that a
rollout took first, which has the same mean and less variance. Tensors are used through their methods only, so that a
configuration is checked without torch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from clawexp.algo.surrogate import Surrogate
from clawexp.component import component
from clawexp.errors import LearnerError

if TYPE_CHECKING:
    from torch import Tensor

Share = Annotated[float, Field(ge=0, le=1)]


@component
class Critic:
    """What a critic learns, and what is made of its values."""

    advantage: Literal["segment", "paper"]
    lambda_token: Share
    """From one token of an answer to the next."""
    lambda_turn: Share
    """From the last token of an answer to the first of the next."""
    lr: Annotated[float, Field(gt=0)]
    width: Annotated[int, Field(ge=1)]
    """Of the value head's inner layer."""
    epochs: Annotated[int, Field(ge=1)]
    """Updates of the value head on each batch."""
    warmup_batches: Annotated[int, Field(ge=0)]
    """Batches from which the critic alone learns, before the policy does."""
    warmup_gain: Annotated[float, Field(gt=0)] | None
    """The critic goes on alone while the variance that it explains of a new batch is higher by this than any before."""
    warmup_limit: Annotated[int, Field(ge=0)]
    """Batches of both together, at most."""
    clip: Annotated[float, Field(gt=0)]
    """How far a batch may move a value."""

    def advantages(self, returns: "Tensor", value: "Tensor", successor: "Tensor", within: "Tensor") -> "Tensor":
        """One for each ownership, all [M], as `clawexp.batch` names them; V is the value before the token is chosen.

        Where a token k has a successor s(k), and at the end of a path:

            A_k = V_s(k) - V_k + lambda_k A_s(k)
            A_k = R - V_k

        with lambda_token within an answer and lambda_turn from one to the next. The successor's context holds all of
        the token's own, so V_s(k) has the mean of R; what came later in time but has lost context (after a
        compaction, in a sub-agent) or exists because of what was seen (a second branch) has not, and is no successor.
        """
        if self.advantage == "paper":
            return returns - value
        found, values, inside = (returns - value).tolist(), value.tolist(), within.tolist()
        after = successor.tolist()
        for k in reversed(range(len(found))):  # a successor stands behind its token
            if (s := after[k]) >= 0:
                found[k] = values[s] - values[k] + (self.lambda_token if inside[k] else self.lambda_turn) * found[s]
        return value.new_tensor(found)

    def loss(self, value: "Tensor", old_value: "Tensor", target: "Tensor", weight: "Tensor") -> "Tensor":
        """L = 1/2 sum_k w_k max((V_k - T_k)^2, (clip(V_k) - T_k)^2), all [n]; clip(V) is within `clip` of V_old."""
        near = old_value + (value - old_value).clamp(-self.clip, self.clip)
        return 0.5 * (weight * (value - target).square().maximum((near - target).square())).sum()


@component
class Ppo(Surrogate):
    """One advantage per token and rollout, a surrogate objective over sampled tokens."""

    critic: Critic

    @property
    def recompute_old(self) -> bool:
        """The pass that reads the values scores the batch, too."""
        return True

    @property
    def siblings(self) -> Literal["none"]:
        return "none"

    @property
    def sibling_factor(self) -> float:
        return 1.0

    @property
    def extra_rounds(self) -> int:
        """A critic learns from groups without spread, too."""
        return 0

    def worth(self, rewards: Sequence[float], groups: Sequence[tuple[str, str]], valid: Sequence[bool]) -> list[float]:
        """One per rollout: its reward, which is all that is given to it, at its end. 0 where it is not valid.

        Raises LearnerError for a valid reward outside of [0, 1], where values lie.
        """
        for reward, group, is_valid in zip(rewards, groups, valid, strict=True):
            if is_valid and not 0 <= reward <= 1:
                raise LearnerError(
                    f"task {group[0]} under {group[1]}: the reward {reward} is not within [0, 1], and a critic's "
                    "values are. Let the grader score within it."
                )
        return [reward if is_valid else 0.0 for reward, is_valid in zip(rewards, valid, strict=True)]
