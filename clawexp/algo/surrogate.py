"""What the algorithms share: the optimiser's numbers and the surrogate objective.

Tensors are used through their methods only, so that a configuration is checked without torch.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from clawexp.algo.correction import Reject, keeps, token_weight
from clawexp.component import component
from clawexp.protocols import Auxiliary, LeafFilter, Normaliser

if TYPE_CHECKING:
    from torch import Tensor

Decay = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[float, Field(ge=0)]
Bound = Annotated[float, Field(ge=0)]
Objective = Literal["clipped", "cispo", "gspo"]
MAX_LOG_RATIO = 20.0
"""Keeps exp finite; far outside of any clip."""


@component
class Surrogate:
    """An algorithm with a surrogate objective over sampled tokens. What a rollout is worth is for each to say."""

    lr: Annotated[float, Field(gt=0)]
    betas: tuple[Decay, Decay]
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_steps: Annotated[int, Field(ge=0)]
    """Updates of the policy over which the learning rate rises to `lr`."""
    grad_clip: Annotated[float, Field(gt=0)]
    """Largest norm of the gradient."""
    updates: Annotated[int, Field(ge=1)]
    """Of the policy on each batch."""
    objective: Objective
    """See `loss`."""
    clip_low: Annotated[float, Field(gt=0, lt=1)]
    clip_high: Annotated[float, Field(gt=0)]
    reference_kl: Factor
    """Weight of KL(pi || reference), the policy that the run began with; 0 makes no reference."""
    entropy_bonus: Factor
    """Weight of the entropy."""
    tis_cap: Annotated[float, Field(gt=0)]
    token_band: tuple[Bound, Bound] | None
    reject: Reject | None
    reject_within: tuple[Bound, Bound]
    veto: Annotated[float, Field(gt=0, lt=1)] | None
    """For these four see `clawexp.algo.correction`."""
    normaliser: Normaliser
    """See `clawexp.batch.pack.pack`."""
    constant_tokens: Annotated[int, Field(ge=1)]
    min_group: Annotated[int, Field(ge=1)]
    """A group with fewer valid rollouts is left out."""
    auxiliary: Auxiliary
    leaf_filter: LeafFilter
    """See `clawexp.tree.forest.prune`."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.token_band is not None and not self.token_band[0] <= 1 <= self.token_band[1]:
            raise ValueError(f"token_band is {list(self.token_band)}; it goes from at most 1 to at least 1")
        low, high = self.reject_within
        if self.reject == "k3" and not low == 0 < high:
            raise ValueError(
                f"reject_within is {[low, high]}; for k3, which is 0 at best, it goes from 0 to, say, 0.01"
            )
        if self.reject in ("sequence", "geometric") and not low <= 1 <= high:
            raise ValueError(f"reject_within is {[low, high]}; for a ratio it goes from at most 1 to at least 1")
        return self

    @property
    def rejects(self) -> bool:
        """Whether rollouts are left out for how far engine and learner differ on them."""
        return self.reject is not None or self.veto is not None

    @property
    def sequence_ratio(self) -> bool:
        """Whether advantages are multiplied by the ratio of the whole rollout, by `clipped_advantage`."""
        return self.objective == "gspo"

    @property
    def trains_all(self) -> bool:
        """Whether a token without an advantage carries loss, too."""
        return self.reference_kl > 0 or self.entropy_bonus > 0

    def keeps(self, log_ratio: "Tensor", rollout: "Tensor", num_rollouts: int) -> "Tensor":
        """Which rollouts are trained on, bool [R]. log pi_old - log pi_behaviour of tokens, and whose they are, [n]."""
        return keeps((log_ratio, rollout, num_rollouts), self.reject, self.reject_within, self.veto)

    def clipped_advantage(self, advantage: "Tensor", ratio: "Tensor") -> "Tensor":
        """s A, or 0 where clipping takes the gradient; both [M]. s is the ratio of the rollout that A is of."""
        gone = (advantage > 0) & (ratio > 1 + self.clip_high) | (advantage < 0) & (ratio < 1 - self.clip_low)
        return (advantage * ratio).masked_fill(gone, 0.0)

    def loss(
        self,
        logprob: "Tensor",
        old_logprob: "Tensor",
        behaviour_logprob: "Tensor",
        positive: "Tensor",
        negative: "Tensor",
        share: "Tensor | None" = None,
        reference_logprob: "Tensor | None" = None,
    ) -> "tuple[Tensor, dict[str, Tensor]]":
        """Summed over tokens, all [n]; P and N hold advantage and weight, `share` the weight alone (`clawexp.batch`):

            L = - sum_t w_t J_t + sum_t w_t r_t share_t [reference_kl k3_t + entropy_bonus log pi]
            r_t = pi / pi_old,  near_t = r_t within [1 - clip_low, 1 + clip_high]

        with w_t of `clawexp.algo.correction` and J_t of the objective:

        - `clipped`: min(r P, near P) + min(r N, near N). Exact where rollouts share a token: min(rA, near A) is
          positively homogeneous in A of either sign, so two sums of advantages stand for all of them.
        - `cispo` (arXiv:2506.13585): near (P + N) log pi, near without gradient: no token loses its gradient. Linear
          in A, so exact for shared tokens, too.
        - `gspo` (arXiv:2507.18071): the ratio is one for all tokens that a rollout sampled, each once,
          s = exp(mean (log pi - log pi_old)). It is not a sum over tokens, so the learner takes s from a pass of its
          own and puts it into P and N by `clipped_advantage`, for each owner of a token by itself: then P and N hold
          the gradient's weights, J = pi / sg(pi) (P + N), and the gradient is exact for shared tokens. The loss leaves
          out the constant of the rollouts that are clipped. Where a rollout's tokens have advantages of their own
          (a critic), this is the paper's token variant.

        k3 = q - 1 - log q with q = reference / pi. Times r, its mean is KL(pi || reference) and its gradient that of
        the divergence; k3 alone would follow the one of the other direction. The entropy is estimated by -log pi of
        the sampled tokens, without gradient but for r: right in the mean, and nothing of a vocabulary's size is kept.
        Both are over all trained tokens, those without an advantage, too.

        Also counts tokens: `clipped` lost gradient of one sign (cispo: had a ratio that was clipped), `truncated` had
        a weight above the cap, `masked` had one outside of the band.
        """
        w, counts = token_weight(old_logprob - behaviour_logprob, self.tis_cap, self.token_band)
        r = (logprob - old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        near = r.clamp(1 - self.clip_low, 1 + self.clip_high)
        if self.objective == "clipped":
            objective = (r * positive).minimum(near * positive) + (r * negative).minimum(near * negative)
            clipped = (r > near) & (positive > 0) | (r < near) & (negative < 0)
        elif self.objective == "cispo":
            objective, clipped = near.detach() * (positive + negative) * logprob, r != near
        else:
            objective, clipped = (logprob - logprob.detach()).exp() * (positive + negative), r.isnan()
        loss = -(w * objective).sum()
        if share is not None:
            loss = loss + (w * r * share * self._pull(logprob, reference_logprob)).sum()
        return loss, {"clipped": clipped.sum(), **counts}

    def _pull(self, logprob: "Tensor", reference_logprob: "Tensor | None") -> "Tensor":
        """Estimates of what is paid for being far from the reference, and for being certain, [n]."""
        pull = self.entropy_bonus * logprob.detach()
        if reference_logprob is not None:
            log_q = (reference_logprob - logprob).clamp(max=MAX_LOG_RATIO)
            pull = pull + self.reference_kl * (log_q.exp() - 1 - log_q)
        return pull
