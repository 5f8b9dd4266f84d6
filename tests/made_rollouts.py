"""Rollouts made by hand or by chance, for tests of what is learned from them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clawexp.model.decoder import Policy
from clawexp.outcome import Outcome
from clawexp.records import Call, Rollout, Span
from clawexp.tree.forest import prune
from clawexp.tree.tree import Tree, grow

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": 11,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "tie_word_embeddings": True,
}


EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "norm_topk_prob": True,
}
"""Of a mixture of experts, beside CONFIG."""


def tiny_policy(folder: Path, seed: int = 0, scale: float = 0.5, **config: Any) -> Path:
    """A checkpoint with random weights."""
    generator = torch.Generator().manual_seed(seed)
    policy = Policy(CONFIG | config)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.1 * noise if "norm" in name else scale * noise)
    policy.save(folder)
    return folder


def call(call_id: str, prompt: Sequence[int], sampled: Sequence[int], **other: Any) -> Call:
    """A call; logprobs differ from token to token unless they are given."""
    fields: dict[str, Any] = {
        "rollout_id": "r0",
        "position": 0,
        "dialect": "openai_chat",
        "kind": "main",
        "cause": "continue",
        "parent": None,
        "shared": 0,
        "logprobs": tuple(-0.5 - 0.01 * place for place in range(len(sampled))),
        "spans": (Span(version=0, start=0, end=len(sampled)),),
        "finish_reason": "stop",
        "verdict": "text",
        "requested": {},
        "submitted": {},
    }
    return Call(call_id=call_id, prompt_ids=tuple(prompt), sampled_ids=tuple(sampled), **fields | other)


def rollout(calls: Sequence[Call], rollout_id: str = "r0", number: int = 0) -> Rollout:
    return Rollout(
        id=rollout_id,
        task_id="task",
        harness="builtin",
        step=0,
        number=number,
        seed=0,
        outcome=Outcome.COMPLETED,
        reward=1.0,
        calls=tuple(calls),
    )


def random_rollout(
    seed: int, num_calls: int = 12, vocab: int = 3, rollout_id: str = "r0", opening: Sequence[int] = (1, 2)
) -> Rollout:
    """A session with turns, retries, rewritten and cut answers, compactions and interleaved sub-agents.

    The vocabulary is so small that unrelated sequences begin alike.
    """
    draw = random.Random(seed)
    calls: list[Call] = []

    def some(most: int, least: int = 0) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab) for _ in range(draw.randint(least, most)))

    for number in range(num_calls):
        before = draw.choice(calls) if calls else None
        way = draw.choice(["continue"] * 4 + ["retry", "rewrite", "compaction", "subagent", "reminder"])
        if before is None:
            prompt, way = tuple(opening), "root"
        elif way == "retry":
            prompt = before.prompt_ids
        elif way == "rewrite":
            kept = draw.randint(0, len(before.sampled_ids))
            prompt = before.prompt_ids + before.sampled_ids[:kept] + some(3)
        elif way == "continue":
            prompt = before.prompt_ids + before.sampled_ids + some(4)
        elif way == "reminder":
            prompt = before.prompt_ids[: draw.randint(1, len(before.prompt_ids))] + some(4)
        else:
            prompt = tuple(opening)[: draw.randint(0, len(opening))] + some(4, least=1)
        answer = some(4, least=1)
        calls.append(
            call(
                f"c{number}",
                prompt,
                answer,
                rollout_id=rollout_id,
                position=number,
                cause=way,
                kind="auxiliary" if way == "compaction" else "main",
                verdict=draw.choice(["text", "tool_calls", "malformed"]),
                logprobs=tuple(-draw.random() * 3 for _ in answer),
            )
        )
    return rollout(calls, rollout_id)


def two_turns(rollout_id: str = "r0", last: int = 7) -> Rollout:
    """Two turns, and a sub-agent whose prompt begins alike: the smallest tree with a branch."""
    return rollout(
        [
            call("c0", [1, 2], [3, 9], cause="root", verdict="tool_calls"),
            call("c1", [1, 2, 3, 9, 5, 6], [last], logprobs=(-0.25,)),
            call("c2", [1, 8], [4], cause="subagent"),
        ],
        rollout_id,
    )


def random_trees(seed: int, count: int = 4) -> list[Tree]:
    """Of rollouts r0, r1, ..."""
    return [prune(grow(random_rollout(seed + n, rollout_id=f"r{n}")), auxiliary="full") for n in range(count)]
