from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from clawexp.engine.embedded import Embedded
from clawexp.spec import Model

CONTEXT = 200
VOCAB = 512
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


class Checkpoint:
    """A tiny random model on disk, and the reference that transformers makes of it."""

    def __init__(self, folder: Path, seed: int, head_dim: int = 8, experts: bool = False) -> None:
        torch.manual_seed(seed)
        config = (Qwen3MoeConfig if experts else Qwen3Config)(
            **{"head_dim": head_dim, **(EXPERTS if experts else {})},
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            tie_word_embeddings=True,
            initializer_range=0.3,
        )
        self.folder = folder
        self.reference: PreTrainedModel = (Qwen3MoeForCausalLM if experts else Qwen3ForCausalLM)(config).eval()
        self.reference.save_pretrained(folder)

    def logprobs(self, prompt: list[int], ids: list[int], temperature: float) -> list[float]:
        """Of each of `ids` after the prompt, by one full pass."""
        with torch.no_grad():
            logits = self.reference(torch.tensor([prompt + ids])).logits[0] / temperature
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        return rows.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def embedded(deterministic: bool = False, slots: int = 4, prefill_chunk: int = 16) -> Embedded:
    return Embedded(slots=slots, prefill_chunk=prefill_chunk, deterministic=deterministic, threads=1, start_s=120)


def model(checkpoint: Checkpoint, engine: Embedded) -> Model:
    return Model(
        name="tiny",
        path=str(checkpoint.folder),
        rendering="template",
        context=CONTEXT,
        max_tokens=64,
        source=None,
        engine=engine,
    )


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
