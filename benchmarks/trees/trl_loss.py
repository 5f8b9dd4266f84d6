"""Runs the loss of TRL's GRPO trainer, in its own environment: `python trl_loss.py CHECKPOINT SAMPLES THREADS`.

SAMPLES is a JSON list of [ids, length of the prompt]; each is a batch of its own, so that nothing is padded. Prints a
JSON record: version, seconds of forward and backward.
"""
# pyright: reportMissingImports=false

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


def tokenizer(size: int) -> transformers.PreTrainedTokenizerFast:
    """Never asked for anything but its special tokens."""
    words = {f"w{number}": number for number in range(size)}
    made = Tokenizer(WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0", eos_token="w0")


def trainer(checkpoint: str, folder: str) -> trl.GRPOTrainer:
    """TRL's own, never asked to train: its loss is called, as its training step calls it."""
    config = trl.GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=2, num_generations=2,
        gradient_checkpointing=False, max_completion_length=8,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return trl.GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "w1"}] * 2),
        processing_class=tokenizer(model.config.vocab_size),
    )


def inputs(ids: list[int], prompt: int, total: int) -> dict[str, torch.Tensor]:
    """A batch of one call, as the trainer makes it of what was generated."""
    both = torch.tensor([ids])
    return {
        "prompt_ids": both[:, :prompt],
        "prompt_mask": torch.ones_like(both[:, :prompt]),
        "completion_ids": both[:, prompt:],
        "completion_mask": torch.ones_like(both[:, prompt:]),
        "advantages": torch.tensor([1.0]),
        "num_items_in_batch": torch.tensor(float(total)),
    }


def main() -> None:
    checkpoint, samples, threads = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3])
    torch.set_num_threads(threads)
    now = time.process_time if threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        grpo = trainer(checkpoint, folder)
        grpo.model.train()
        grpo.current_gradient_accumulation_steps = 1
        total = sum(len(ids) - prompt for ids, prompt in samples)
        for warm in (True, False):
            start = now()
            for ids, prompt in samples[:1] if warm else samples:
                grpo.compute_loss(grpo.model, inputs(ids, prompt, total)).backward()
            spent = now() - start
    print(json.dumps({"version": trl.__version__, "seconds": spent}))


if __name__ == "__main__":
    main()
