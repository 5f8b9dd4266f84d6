"""A checkpoint folder without weights, and the texts of the conversations that are measured with it.

The vocabulary is trained here, in a second, on modules of the standard library: about three characters a token, as a
real one has, where a vocabulary of bytes would make prompts three times as long.
"""

import json
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from clawexp.capture.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SOURCES = ("argparse.py", "subprocess.py", "typing.py", "tarfile.py", "datetime.py", "inspect.py")
VOCABULARY = 4096
SYSTEM = (
    "You are a coding assistant that works in the user's project folder. Read files before you change them, keep "
    "changes small, run the tests when you are done, and say in a few words what you have changed and why. "
) * 24
"""Characters: 4,900."""
PROPERTIES = {
    name: {"type": "string", "description": f"The {name} that this tool works on, relative to the project folder."}
    for name in ("path", "pattern", "text", "command")
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "description": f"{name.capitalize()} files of the project; the result is cut after two thousand lines.",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["path"]},
    }
    for name in ("read", "write", "edit", "search", "list", "run")
]
"""Name, description and parameters of each; 4 kB of JSON."""


@cache
def corpus() -> str:
    """Python source, what tools read in the conversations: 0.5 MB."""
    library = Path(sysconfig.get_path("stdlib"))
    return "".join((library / name).read_text() for name in SOURCES)


def excerpt(number: int, size: int) -> str:
    """So many characters of the corpus, another part for each number."""
    text = corpus()
    begin = number * 7919 % (len(text) - size)
    return text[begin : begin + size]


def write_checkpoint(folder: Path) -> Tokenizer:
    """A vocabulary with Qwen3's special tokens, and empty files for the rest."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([corpus(), SYSTEM], trainer)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return Tokenizer(folder)
