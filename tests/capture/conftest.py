"""A tiny tokenizer with Qwen3's special tokens, a checkpoint folder around it, and a live capture process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import tokenizers
from bench import CONTEXT, MAX_CALLS, Bench
from stub_engine import model_of, options_of, serve_stub
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from clawexp.capture.boundary import boundary
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
CHATML = (
    "{%- if tools %}{{ '<|im_start|>system\\n' }}{%- for tool in tools %}{{ tool | tojson }}\\n{%- endfor %}"
    "{{ '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System must be first') }}{%- endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
WORDS = (
    'read the file notes.txt and write what it says: weather is fine, naïve ☕ x = 4 "path": system user assistant\n'
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that a checkpoint has but weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([WORDS] * 50, trainer)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


@pytest.fixture(scope="session")
def qwen3(tokenizer: Tokenizer) -> Qwen3Rendering:
    return Qwen3Rendering(tokenizer)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    tokenizer: Tokenizer,
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    connect: Callable[[str, str], AbstractAsyncContextManager[Any]],
) -> AsyncIterator[Bench[Any]]:
    """A capture process for one module of tests, whose `connect` makes the clients."""
    options, model = options_of(max_calls=MAX_CALLS), model_of(checkpoint, context=CONTEXT)
    async with (
        serve_stub(tokenizer) as engine,
        boundary(options, model, engine.url, "secret", tmp_path_factory.mktemp("run")) as live,
    ):
        yield Bench(engine, live, connect, AsyncExitStack())


@pytest_asyncio.fixture(loop_scope="module")
async def bench(shared: Bench[Any]) -> AsyncIterator[Bench[Any]]:
    """The shared process, with an engine that remembers nothing."""
    async with shared.clients:
        yield shared
    shared.engine.script.clear()
    shared.engine.requests.clear()
    shared.engine.failures = 0
    shared.engine.release = None
    shared.engine.arrived = asyncio.Semaphore(0)
    shared.engine.cancelled.clear()
