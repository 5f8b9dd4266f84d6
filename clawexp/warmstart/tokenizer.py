"""Text -> a byte-level BPE with Qwen3's special tokens, written as a tokenizer that transformers and vLLM load too.

Words, digits and the runs between them are split before any merge, and a word takes no space with it: a file name has
the same ids in an instruction, in a JSON argument and in a file. A model of a million parameters can learn to copy
only so. The same holds after a line break, which JSON writes as a backslash and a letter: that pair is split too.
Common words do take the space after them, so that what follows them is told by the token before it.
"""

import json
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
COMMON = (
    "a an and any are as at be been but by called can content copy create do each find for from has have "
    "holds if in into is it its keep make may must no not of on one only or put read save says set should "
    "so such than that the their them then there these this to use used value was when which with without "
    "write you your "
)
"""English words that carry grammar, and those that instructions are made of."""
SPLIT = rf"(?i:\b(?:{'|'.join(COMMON.split())}) )|" + r"\\[nrt\"\\]|\p{L}+|\p{N}|[^\p{L}\p{N}\\]+|\\"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` entries (when `texts` has merges enough), the special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 65536,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": list(SPECIAL),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    template = resources.files("clawexp.warmstart").joinpath("chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)


def library_text(megabytes: float) -> Iterator[str]:
    """Python's own library as plain English and code: on every machine, and free of any task's words."""
    left = int(megabytes * 1e6)
    for file in sorted(Path(json.__file__).parent.parent.glob("*.py")):
        text = file.read_text(errors="ignore")[:left]
        left -= len(text)
        yield text
        if left <= 0:
            return
