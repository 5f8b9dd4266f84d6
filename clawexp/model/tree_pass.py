"""Forward and backward over packed trees: every token is computed once, however many rollouts share it.

All modes give the same numbers as one pass per path from root to leaf. `chain` keeps the graph of a whole tree and is
the faster; `dfs` keeps that of one path and a pack of subtrees beside it: a branch point's keys and values lie on the
path, its subtrees add into their gradients, and then it is backpropagated itself. `auto` is `chain` as far as the graph
stays within a number of bytes, and goes depth first beyond.

Trees lie on the CPU; the policy may lie on a GPU, where attention is FlexAttention's and a tree is passed whole.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clawexp.errors import LearnerError
from clawexp.model.flex_attention import compiled, masked_attention, tree_mask
from clawexp.model.target_head import target_logprobs
from clawexp.model.tree_attention import Past, tree_attention
from clawexp.model.tree_memory import token_bytes
from clawexp.model.tree_plan import Step, blocks_of, check_trees, schedule
from clawexp.model.tree_policy import Route, See, TreePolicy

Mode = Literal["auto", "chain", "dfs"]
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
    experts: Tensor | None = None
    """Where each token shall go in each layer, int16 [N, layers, k]; -1 where the router shall decide. None: it decides
    everywhere."""


def tree_logprobs(
    policy: TreePolicy,
    tokens: TreeTokens,
    targets: Tensor,
    temperature: float,
    mode: Mode,
    *,
    graph_bytes: float = math.inf,
    entropy_out: Tensor | None = None,
    hidden_out: Tensor | None = None,
) -> Tensor:
    """Logprob of each target token given its path, in the order of `targets` (indices, int64 [n]), without gradients.

    Writes the entropy of each target's distribution, in nats, into `entropy_out` [n], and the final hidden state that
    it was read from, that of the target's parent, into `hidden_out` [n, hidden], where they are given. `graph_bytes`
    is what `auto` keeps to. Raises LearnerError for tokens that are no trees, and for a root as target.
    """
    with torch.no_grad():
        return _Pass(policy, tokens, targets, temperature, None, entropy_out, hidden_out).run(mode, graph_bytes)


def tree_backward(
    policy: TreePolicy,
    tokens: TreeTokens,
    targets: Tensor,
    token_loss: TokenLoss,
    temperature: float,
    mode: Mode,
    *,
    graph_bytes: float = math.inf,
    checkpointing: bool = False,
    entropy_out: Tensor | None = None,
) -> Tensor:
    """As `tree_logprobs`; and adds the gradient of the loss, summed over calls of `token_loss`, to the parameters.

    The loss must be additive over tokens: it is asked for in several pieces. With `checkpointing` only what each layer
    begins with is kept, and the layer is computed again in the backward pass: a third more work.
    """
    with torch.enable_grad():
        each = _Pass(policy, tokens, targets, temperature, token_loss, entropy_out, checkpointing=checkpointing)
        return each.run(mode, graph_bytes)


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
        policy: TreePolicy,
        tokens: TreeTokens,
        targets: Tensor,
        temperature: float,
        token_loss: TokenLoss | None,
        entropy_out: Tensor | None,
        hidden_out: Tensor | None = None,
        checkpointing: bool = False,
    ) -> None:
        self.policy, self.tokens, self.temperature = policy, tokens, temperature
        self.device, self.checkpointing = policy.embedding.device, checkpointing
        self.token_loss, self.entropy_out, self.hidden_out = token_loss, entropy_out, hidden_out
        self.parent = tokens.parent.numpy()
        check_trees(tokens.position.numpy(), self.parent)
        if bool((tokens.parent[targets] < 0).any()):
            raise LearnerError("packed trees: a root has no logprob, so it cannot be a target")
        self.targets = targets
        self.ascending, self.order = torch.sort(targets)
        self.logprobs = torch.empty(len(targets), dtype=torch.promote_types(policy.embedding.dtype, torch.float32))

    def run(self, mode: Mode, graph_bytes: float) -> Tensor:
        steps = schedule(self.parent, PACK_TOKENS, self._graph_tokens(mode, graph_bytes))
        path = self._path(steps)
        for step in steps:
            if step.kind == "close":
                self._close(path)
            elif step.kind == "open":
                self._open(step, path)
            elif len(self._which(step)):
                _, final = self._hidden(step, path)
                loss = self._loss(step, final, path)
                if loss is not None:
                    loss.backward()
        return self.logprobs

    def _graph_tokens(self, mode: Mode, graph_bytes: float) -> float:
        """How many tokens a graph may have before it is made depth first."""
        if self.device.type != "cpu" and mode == "dfs":
            raise LearnerError("tree_pass `dfs` is for CPUs. Choose `auto` or `chain`; checkpointing saves memory.")
        if mode == "chain" or self.device.type != "cpu":
            return math.inf
        if mode == "dfs":
            return 0
        itemsize, grad = self.policy.embedding.itemsize, self.token_loss is not None
        return graph_bytes / token_bytes(self.policy.shape, itemsize, grad, self.checkpointing)

    def _path(self, steps: list[Step]) -> _Path:
        last = [step.end - 1 for step in steps if step.kind == "open"]
        depth = int(self.tokens.position[last].max()) + 1 if last else 0
        shape = self.policy.shape
        size = (shape.layers, depth, shape.kv_heads, shape.head_dim)
        keys, values, keys_grad, values_grad = (self.policy.embedding.new_zeros(size) for _ in range(4))
        return _Path(keys, values, keys_grad, values_grad)

    def _open(self, step: Step, path: _Path) -> None:
        kept, final = self._hidden(step, path)
        loss = self._loss(step, final, path)
        last = final[-1:]
        leaf = last.detach().requires_grad_(self.token_loss is not None)
        depth = int(self.tokens.position[step.start])
        keys, values = ([pair[which] for pair in kept] for which in (0, 1))
        path.push(_Open(keys, values, loss, last, leaf, slice(depth, depth + len(final))))

    def _close(self, path: _Path) -> None:
        chain = path.stack.pop()
        if self.token_loss is None:
            return
        grads = (*path.keys_grad[:, chain.rows], *path.values_grad[:, chain.rows])
        kept = zip((*chain.keys, *chain.values), grads, strict=True)
        pairs = [*kept, (chain.last, chain.leaf.grad), (chain.loss, torch.ones(()))]
        # Nothing that is trained need be below the first keys, where adapters alone are.
        found = [(t, g.to(t.dtype)) for t, g in pairs if t is not None and g is not None and t.requires_grad]
        torch.autograd.backward([tensor for tensor, _ in found], [grad for _, grad in found])

    def _hidden(self, step: Step, path: _Path) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Keys and values of each layer, where a step opens a chain, and final hidden states, of a step's tokens."""
        tokens = slice(step.start, step.end)
        position = self.tokens.position[tokens].to(self.device)
        ids, see = self.tokens.input_ids[tokens].to(self.device), self._attention(step, path)
        kept: dict[int, tuple[Tensor, Tensor]] = {}

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if step.kind == "open":
                kept.setdefault(number, (k, v))  # those of a checkpoint's second forward pass are not the graph's
            return see(number, q, k, v)

        final = self.policy.states(ids, position, attend, self.checkpointing, self._routes(tokens))
        return list(kept.values()), final

    def _routes(self, tokens: slice) -> Route | None:
        """The choices that are given of these tokens."""
        if self.tokens.experts is None:
            return None
        given = self.tokens.experts[tokens].to(self.device, torch.int64)
        return lambda number, own: torch.where(given[:, number] < 0, own, given[:, number])

    def _attention(self, step: Step, path: _Path) -> See:
        """That of each layer, by its number, for a step's tokens."""
        parent = np.maximum(self.parent[step.start : step.end] - step.start, -1)
        if self.device.type != "cpu":
            mask = tree_mask(parent, self.device)
            return lambda number, q, k, v: masked_attention(q, k, v, mask, compiled())
        blocks, depth = blocks_of(parent), int(self.tokens.position[step.start])
        return lambda number, q, k, v: tree_attention(q, k, v, blocks, path.before(number, depth))

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
        hidden = final[row.to(self.device)]
        if self.hidden_out is not None:
            self.hidden_out[which] = hidden.to(self.hidden_out.device)
        ids = self.tokens.input_ids[token].to(self.device)
        entropy = None if self.entropy_out is None else self.logprobs.new_empty(len(ids), device=self.device)
        logprobs = target_logprobs(hidden, self.policy.head, ids, self.temperature, entropy).cpu()
        self.logprobs[which] = logprobs.detach()
        if self.entropy_out is not None and entropy is not None:
            self.entropy_out[which] = entropy.to(self.entropy_out)
        return None if self.token_loss is None else self.token_loss(logprobs, which)
