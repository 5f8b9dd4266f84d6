"""Demonstrations -> weights: supervised learning on forests, one tree a harness, its prompt computed once a step."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clawexp.model.decoder import Policy
from clawexp.model.tree_pass import TreeTokens, tree_backward
from clawexp.warmstart.demonstration import Demonstration

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """`Fit(steps=2000, lr=2e-3, warmup=50)`"""

    steps: int
    lr: float
    warmup: int

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a twentieth."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def tiny_config(vocab_size: int, eos: int) -> dict:
    """Qwen3's architecture at 1.3 M parameters; heads of 32 are the smallest that vLLM loads."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": eos,
        "torch_dtype": "float32",
    }


def fit(
    policy: Policy,
    groups: Callable[[int], Sequence[Sequence[Demonstration]]],
    plan: Fit,
    save: Callable[[], None],
) -> None:
    """Minimise the mean negative logprob of what the demonstrations say. `groups(step)`: a list for each tree."""
    others = [p for p in policy.parameters() if p is not policy.embedding]
    # The embedding is also the head: every row of it moves in every step, so it takes smaller ones.
    optimizer = torch.optim.AdamW(
        [{"params": others, "share": 1.0}, {"params": [policy.embedding], "share": 0.1}],
        betas=(0.9, 0.98),
        weight_decay=0.01,
    )
    begin, average = time.monotonic(), 0.0
    for step in range(plan.steps):
        tokens, targets = forest(groups(step))
        scale = 1.0 / len(targets)
        logprobs = tree_backward(policy, tokens, targets, lambda lp, _: -lp.sum() * scale, 1.0, "chain")  # noqa: B023
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step) * group["share"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average = 0.95 * average - 0.05 * float(logprobs.mean()) if step else -float(logprobs.mean())
        if step % 25 == 0 or step == plan.steps - 1:
            pace = (time.monotonic() - begin) / (step + 1)
            log.warning(
                "step %d/%d  loss %.4f  %.2f s a step  %d tokens",
                step,
                plan.steps,
                average,
                pace,
                len(tokens.input_ids),
            )
            save()


def forest(groups: Sequence[Sequence[Demonstration]]) -> tuple[TreeTokens, Tensor]:
    """One tree for each group, its common beginning once; targets are the sampled tokens."""
    ids: list[int] = []
    position: list[int] = []
    parent: list[int] = []
    targets: list[int] = []
    for group in groups:
        shared = common(group)
        root = len(ids)
        ids += group[0].ids[:shared]
        position += range(shared)
        parent += [-1, *range(root, root + shared - 1)]
        for demonstration in group:
            start = len(ids)
            rest = demonstration.ids[shared:]
            ids += rest
            position += range(shared, shared + len(rest))
            parent += [root + shared - 1, *range(start, start + len(rest) - 1)]
            targets += [start + i for i, said in enumerate(demonstration.sampled[shared:]) if said]
    tokens = TreeTokens(*(torch.tensor(column) for column in (ids, position, parent)))
    return tokens, torch.tensor(targets)


def common(group: Sequence[Demonstration]) -> int:
    """How many ids all demonstrations of a group begin with; at least one is left over for each."""
    length = min(len(d.ids) for d in group) - 1
    first = np.array(group[0].ids[:length])
    for demonstration in group[1:]:
        differs = np.nonzero(first[:length] != np.array(demonstration.ids[:length]))[0]
        length = int(differs[0]) if len(differs) else length
    return length
