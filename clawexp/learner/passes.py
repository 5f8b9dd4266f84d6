"""A batch through a policy: each rank passes its parts, and all learn what was found for all tokens."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.parts import Part, split
from clawexp.errors import LearnerError
from clawexp.learner.ranks import Ranks
from clawexp.model.tree_pass import TreeTokens, tree_backward, tree_logprobs
from clawexp.model.tree_policy import TreePolicy
from clawexp.spec import LearnerOptions

PartLoss = Callable[[TensorDict, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]
"""A part of a batch, logprobs [n] and which of its tokens they are, int64 [n] -> their loss, and counts by name."""
COUNTS = ("loss", "clipped", "truncated", "masked")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a backward pass saw, the same on every rank."""

    logprob: Tensor
    """Of the targets, in order, [n]."""
    entropy: Tensor
    """Of the distributions that they were read from, in nats, [n]."""
    counts: dict[str, float]
    """The loss, and what the algorithm counts, over all tokens."""


class Passes:
    """How batches go through policies."""

    def __init__(self, ranks: Ranks, options: LearnerOptions, temperature: float) -> None:
        self.ranks, self.options, self.temperature = ranks, options, temperature
        self.graph_bytes = options.graph_gb * 1e9

    def logprobs(self, policy: TreePolicy, batch: TensorDict, mask: Tensor, hidden_out: Tensor | None = None) -> Tensor:
        """Of the tokens of a mask [N], in order, [n]. Notes the hidden states that they were read from in
        `hidden_out` [n, hidden], which is 0 before.
        """
        logprobs = _zeros(policy, int(mask.sum()))
        with self.ranks.whole(policy):
            for part, targets, rows in self._parts(batch, mask):
                hidden = None if hidden_out is None else hidden_out[rows]
                logprobs[rows] = tree_logprobs(
                    policy,
                    self._tokens(policy, part),
                    targets,
                    self.temperature,
                    self.options.tree_pass,
                    graph_bytes=self.graph_bytes,
                    hidden_out=hidden,
                )
        self.ranks.add_up(logprobs, *([] if hidden_out is None else [hidden_out]))
        return logprobs

    def backward(self, policy: TreePolicy, batch: TensorDict, mask: Tensor, loss: PartLoss) -> Found:
        """Add the gradient of the loss, summed over all parts, to the policy's."""
        totals: dict[str, float] = defaultdict(float)
        logprobs, entropies = (_zeros(policy, int(mask.sum())) for _ in range(2))
        with self.ranks.whole(policy, gradients=True):
            for part, targets, rows in self._parts(batch, mask):
                entropy = entropies[rows]

                def token_loss(
                    logprob: Tensor, which: Tensor, part: TensorDict = part, targets: Tensor = targets
                ) -> Tensor:
                    value, counts = loss(part, logprob, targets[which])
                    for name, count in {"loss": value.detach(), **counts}.items():
                        totals[name] += count.item()
                    return value

                logprobs[rows] = tree_backward(
                    policy,
                    self._tokens(policy, part),
                    targets,
                    token_loss,
                    self.temperature,
                    self.options.tree_pass,
                    graph_bytes=self.graph_bytes,
                    checkpointing=self.options.activation_checkpointing,
                    entropy_out=entropy,
                )
        counts = torch.tensor([totals.get(name, 0.0) for name in COUNTS], dtype=torch.float64)
        self.ranks.add_up(logprobs, entropies, counts)
        known = totals.keys() or COUNTS  # of a rank that had no part
        counted = {name: count for name, count in zip(COUNTS, counts.tolist(), strict=True) if name in known}
        return Found(logprob=logprobs, entropy=entropies, counts=counted)

    def _parts(self, batch: TensorDict, mask: Tensor) -> Iterator[tuple[TensorDict, Tensor, slice]]:
        """This rank's parts of a batch; which of their tokens are targets, and where those stand among all targets."""
        parts = self.parts(batch)
        places: list[tuple[Tensor, slice]] = []
        rows = 0
        for part in parts:
            targets = part.targets(mask)
            places.append((targets, slice(rows, rows + len(targets))))
            rows += len(targets)
        for index in self.ranks.share([part.tokens for part in parts]):
            yield parts[index].batch, *places[index]

    def parts(self, batch: TensorDict) -> list[Part]:
        """Those of all ranks. A tree is cut only where it has more tokens than a pass may."""
        return list(split(batch, self._budget(batch), self.options.token_budget))

    def _budget(self, batch: TensorDict) -> int:
        return self.ranks.tokens_per_pass(self.options.token_budget, len(batch["input_ids"]))

    def measures(self, batch: TensorDict) -> dict[str, float]:
        """How well a batch fits into passes."""
        parts = self.parts(batch)
        tokens, budget = [part.tokens for part in parts], self._budget(batch)
        return {
            "learner/passes": float(len(parts)),
            "learner/largest_pass_tokens": float(max(tokens, default=0)),
            "learner/pass_fill": sum(tokens) / max(1, sum(max(budget, each) for each in tokens)),
            "learner/repeated_tokens": float(sum(part.repeated for part in parts)),
        }

    def _tokens(self, policy: TreePolicy, part: TensorDict) -> TreeTokens:
        """The structure of a part's trees, and the experts that shall be used again."""
        experts = part.get("experts", None) if self.options.routing == "replay" else None
        if experts is not None and len(experts):
            _check_experts(policy, experts)
        return TreeTokens(part["input_ids"], part["position"], part["parent"], experts)


def _check_experts(policy: TreePolicy, experts: Tensor) -> None:
    """Raise LearnerError where a policy has no such experts."""
    shape = policy.shape
    if shape.experts is None:
        raise LearnerError(
            f"the batch tells of experts, and the policy ({shape.architecture}) has none that can be chosen for it. "
            "The engine serves another model than the learner trains; or choose learner.routing=own."
        )
    want = (shape.layers, shape.experts.chosen)
    if tuple(experts.shape[1:]) != want or int(experts.max()) >= shape.experts.number:
        raise LearnerError(
            f"the batch tells of {tuple(experts.shape[1:])} (layers, chosen) of {int(experts.max()) + 1} experts or "
            f"more, and the policy has {want} of {shape.experts.number}. The engine serves another model than the "
            "learner trains."
        )


def _zeros(policy: TreePolicy, size: int) -> Tensor:
    """On the CPU, where batches are."""
    return torch.zeros(size, dtype=torch.promote_types(policy.embedding.dtype, torch.float32))
