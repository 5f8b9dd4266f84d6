"""Tokens a second of the embedded engine, over HTTP, beside `generate` of transformers: python benchmarks/engine.py

Both run the same random model with one thread. `decode` leaves the prompts out: the engine has them in its
slots, and of transformers the time for the first token is subtracted. `whole` counts prompt and answer of calls
that share nothing.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from clawexp.engine.client import EngineClient
from clawexp.engine.embedded import Embedded
from clawexp.spec import Model

CONCURRENCY = (1, 4, 16)


def random_checkpoint(folder: Path) -> Qwen3ForCausalLM:
    """A model of 1.3 million parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=4096,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4096, (count, length), generator=generator).tolist()


async def answer(engine: EngineClient, asked: Sequence[list[int]], tokens: int) -> float:
    """Seconds to answer all prompts at once."""
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, ids in enumerate(asked):
            call = engine.generate(ids, temperature=1.0, max_tokens=tokens, stop_ids=[], key=str(number))
            group.create_task(call)
    return time.perf_counter() - start


async def embedded(folder: Path, length: int, tokens: int) -> dict[int, tuple[float, float]]:
    """Tokens a second by concurrency: (decode, whole)."""
    engine = Embedded(slots=16, prefill_chunk=256, deterministic=False, threads=1, start_s=120)
    model = Model(
        name="random",
        path=str(folder),
        rendering="template",
        context=4096,
        max_tokens=tokens,
        source=None,
        engine=engine,
    )
    rates: dict[int, tuple[float, float]] = {}
    async with engine.serve(model, 0, folder) as served:
        await answer(served, prompts(16, length, seed=99), tokens)
        for count in CONCURRENCY:
            asked = prompts(count, length, seed=count)
            whole = await answer(served, asked, tokens)
            decode = await answer(served, asked, tokens)
            rates[count] = (count * tokens / decode, count * tokens / whole)
    return rates


def transformers(model: Any, length: int, tokens: int) -> dict[int, tuple[float, float]]:
    """The same by `generate`, all prompts as one batch."""
    rates: dict[int, tuple[float, float]] = {}
    for count in CONCURRENCY:
        asked = torch.tensor(prompts(count, length, seed=count))
        seconds: list[float] = []
        for new in (1, tokens):
            start = time.perf_counter()
            model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=new, do_sample=True, top_k=0)
            seconds.append(time.perf_counter() - start)
        first, whole = seconds
        rates[count] = (count * (tokens - 1) / (whole - first), count * tokens / whole)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=500, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = random_checkpoint(Path(folder))
        results = {
            "embedded": asyncio.run(embedded(Path(folder), options.prompt, options.tokens)),
            "transformers": transformers(model, options.prompt, options.tokens),
        }
    print(f"{'tokens/s':14}" + "".join(f"{f'{count} calls':>22}" for count in CONCURRENCY))
    print(" " * 14 + f"{'decode':>12}{'whole':>10}" * len(CONCURRENCY))
    for name, rates in results.items():
        print(f"{name:14}" + "".join(f"{decode:12.0f}{whole:10.0f}" for decode, whole in rates.values()))


if __name__ == "__main__":
    main()
