"""Forward and backward over packed trees: every token is computed once, however many rollouts share it.

Both modes give the same numbers as one pass per path from root to leaf. `chain` keeps the graph of a whole tree and is
the faster; `dfs` keeps that of one path and a pack of subtrees beside it: a branch point's keys and values lie on the
path, its subtrees add into their gradients, and then it is backpropagated itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clawexp.errors import LearnerError
from clawexp.model.decoder import Policy
from clawexp.model.target_head import target_logprobs
from clawexp.model.tree_attention import Past, tree_attention
from clawexp.model.tree_plan import Step, blocks_of, check_trees, schedule

Mode = Literal["chain", "dfs"]
TokenLoss = Callable[[Tensor, Tensor], Tensor]
"""Logprobs [n] and which of the targets they belong to, int64 [n] -> their share of the loss, a scalar."""
PACK_TOKENS = 2048
"""Subtrees up to this many tokens are computed together: larger products, still in cache."""


@dataclass(frozen=True)
class TreeTokens:
    """Packed trees in depth-first order, int64 [N] each; several trees may follow one another.

    `TreeTokens(input_ids=[7, 3, 9, 4, 8], position=[0, 1, 2, 1, 2], parent=[-1, 0, 1, 0, 3])` (as tensors) holds the
    paths 7 3 9 and 7 4 8.
    """

    input_ids: Tensor
    position: Tensor
    """Depth."""
    parent: Tensor
    """Index of the token before it on its path; -1 for a root."""


def tree_logprobs(
    policy: Policy,
    tokens: TreeTokens,
    targets: Tensor,
    temperature: float,
    mode: Mode,
    *,
    entropy_out: Tensor | None = None,
    hidden_out: Tensor | None = None,
) -> Tensor:
    """Logprob of each target token given its path, in the order of `targets` (indices, int64 [n]), without gradients.

    Writes the entropy of each target's distribution, in nats, into `entropy_out` [n], and the final hidden state that
    it was read from, that of the target's parent, into `hidden_out` [n, hidden], where they are given.
    Raises LearnerError for tokens that are no trees, and for a root as target.
    """
    with torch.no_grad():
        return _Pass(policy, tokens, targets, temperature, None, entropy_out, hidden_out).run(mode)


def tree_backward(
    policy: Policy,
    tokens: TreeTokens,
    targets: Tensor,
    token_loss: TokenLoss,
    temperature: float,
    mode: Mode,
    *,
    entropy_out: Tensor | None = None,
) -> Tensor:
    """As `tree_logprobs`; and adds the gradient of the loss, summed over calls of `token_loss`, to the parameters.

    The loss must be additive over tokens: it is asked for in several pieces.
    """
    with torch.enable_grad():
        return _Pass(policy, tokens, targets, temperature, token_loss, entropy_out).run(mode)


@dataclass
class _Open:
    """A chain on the path whose subtrees are being computed."""

    keys: list[Tensor]
    values: list[Tensor]
    loss: Tensor | None
    last: Tensor
    """Final hidden state of the chain's last token, [1, hidden]."""
    leaf: Tensor
    """The same, detached: what the subtrees' first tokens are read from."""
    rows: slice
    """Its depths."""


@dataclass
class _Path:
    """Keys, values and their gradients by layer and depth, [layers, depth, G, D]."""

    keys: Tensor
    values: Tensor
    keys_grad: Tensor
    values_grad: Tensor
    stack: list[_Open] = field(default_factory=list)

    def before(self, layer: int, depth: int) -> Past | None:
        """What a token of this depth sees on the path."""
        if not depth:
            return None
        buffers = (self.keys, self.values, self.keys_grad, self.values_grad)
        return Past(*(buffer[layer, :depth] for buffer in buffers))

    def push(self, chain: _Open) -> None:
        with torch.no_grad():
            self.keys[:, chain.rows] = torch.stack(chain.keys)
            self.values[:, chain.rows] = torch.stack(chain.values)
            self.keys_grad[:, chain.rows] = 0
            self.values_grad[:, chain.rows] = 0
        self.stack.append(chain)


class _Pass:
    """One pass over all packed trees."""

    def __init__(
        self,
        policy: Policy,
        tokens: TreeTokens,
        targets: Tensor,
        temperature: float,
        token_loss: TokenLoss | None,
        entropy_out: Tensor | None,
        hidden_out: Tensor | None = None,
    ) -> None:
        self.policy, self.tokens, self.temperature = policy, tokens, temperature
        self.token_loss, self.entropy_out, self.hidden_out = token_loss, entropy_out, hidden_out
        self.parent = tokens.parent.numpy()
        check_trees(tokens.position.numpy(), self.parent)
        if bool((tokens.parent[targets] < 0).any()):
            raise LearnerError("packed trees: a root has no logprob, so it cannot be a target")
        self.targets = targets
        self.ascending, self.order = torch.sort(targets)
        self.logprobs = torch.empty(len(targets), dtype=policy.embedding.dtype)

    def run(self, mode: Mode) -> Tensor:
        steps = schedule(self.parent, PACK_TOKENS, split=mode == "dfs")
        path = self._path(steps)
        for step in steps:
            if step.kind == "close":
                self._close(path)
            elif step.kind == "open":
                self._open(step, path)
            elif len(self._which(step)):
                _, _, final = self._hidden(step, path)
                loss = self._loss(step, final, path)
                if loss is not None:
                    loss.backward()
        return self.logprobs

    def _path(self, steps: list[Step]) -> _Path:
        last = [step.end - 1 for step in steps if step.kind == "open"]
        depth = int(self.tokens.position[last].max()) + 1 if last else 0
        shape = self.policy.shape
        size = (shape.layers, depth, shape.kv_heads, shape.head_dim)
        keys, values, keys_grad, values_grad = (self.policy.embedding.new_zeros(size) for _ in range(4))
        return _Path(keys, values, keys_grad, values_grad)

    def _open(self, step: Step, path: _Path) -> None:
        keys, values, final = self._hidden(step, path)
        loss = self._loss(step, final, path)
        last = final[-1:]
        leaf = last.detach().requires_grad_(self.token_loss is not None)
        depth = int(self.tokens.position[step.start])
        path.push(_Open(keys, values, loss, last, leaf, slice(depth, depth + len(final))))

    def _close(self, path: _Path) -> None:
        chain = path.stack.pop()
        if self.token_loss is None:
            return
        tensors = [*chain.keys, *chain.values]
        grads: list[Tensor | None] = [*path.keys_grad[:, chain.rows], *path.values_grad[:, chain.rows]]
        for tensor, grad in ((chain.last, chain.leaf.grad), (chain.loss, torch.ones(()))):
            if tensor is not None and grad is not None:
                tensors.append(tensor)
                grads.append(grad.to(tensor.dtype))
        torch.autograd.backward(tensors, grads)

    def _hidden(self, step: Step, path: _Path) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Keys and values of each layer, and final hidden states, of a step's tokens."""
        tokens = slice(step.start, step.end)
        position = self.tokens.position[tokens]
        blocks = blocks_of(np.maximum(self.parent[tokens] - step.start, -1))
        keys: list[Tensor] = []
        values: list[Tensor] = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            past = path.before(len(keys), int(position[0]))
            keys.append(k)
            values.append(v)
            return tree_attention(q, k, v, blocks, past)

        hidden, rope = self.policy.embed(self.tokens.input_ids[tokens]), self.policy.rope(position)
        for layer in self.policy.layers:
            hidden = layer(hidden, rope, attend)
        return keys, values, self.policy.final(hidden)

    def _which(self, step: Step) -> Tensor:
        """Which of the targets, in ascending order of token, lie in a step."""
        first, end = torch.searchsorted(self.ascending, torch.tensor([step.start, step.end])).tolist()
        return self.order[first:end]

    def _loss(self, step: Step, final: Tensor, path: _Path) -> Tensor | None:
        """Note the logprobs of a step's targets; their loss, where one is asked for and there are any."""
        which = self._which(step)
        if not len(which):
            return None
        token = self.targets[which]
        row = self.tokens.parent[token] - step.start
        if path.stack:  # the first tokens of subtrees are read from the chain above
            final, row = torch.cat((path.stack[-1].leaf, final)), row.clamp(min=-1) + 1
        hidden = final[row]
        if self.hidden_out is not None:
            self.hidden_out[which] = hidden
        entropy = None if self.entropy_out is None else self.logprobs.new_empty(len(which))
        logprobs = target_logprobs(hidden, self.policy.head, self.tokens.input_ids[token], self.temperature, entropy)
        self.logprobs[which] = logprobs.detach()
        if self.entropy_out is not None and entropy is not None:
            self.entropy_out[which] = entropy
        return None if self.token_loss is None else self.token_loss(logprobs, which)
