"""Several ranks against one process, on batches that are read back from one journal."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from made_rollouts import random_rollout, tiny_policy
from safetensors.torch import load_file
from tensordict import TensorDict
from transformers import GemmaConfig, GemmaForCausalLM

from clawexp.algo.grpo import Grpo
from clawexp.algo.ppo import Ppo
from clawexp.batch.pack import pack
from clawexp.capture.journal import CallJournal
from clawexp.errors import LearnerError
from clawexp.learner.learner import Learner
from clawexp.learner.ranked_learner import RankedLearner, open_learner
from clawexp.protocols import Algo
from clawexp.run_folder import RunFolder
from clawexp.spec import LearnerOptions, LoraOptions
from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import grow

CONF = Path(__file__).parents[2] / "conf"
STEPS = 10
GROUPS = 3
"""Of two rollouts, so of one tree, each."""


def grpo(**other: Any) -> Algo:
    fields = yaml.safe_load((CONF / "algo/grpo.yaml").read_text())
    del fields["_target_"]
    return Grpo(**fields | {"lr": 1e-3} | other)


def ppo() -> Algo:
    fields = yaml.safe_load((CONF / "algo/ppo.yaml").read_text())
    del fields["_target_"]
    del fields["critic"]["_target_"]
    return Ppo(**fields | {"lr": 1e-3})


def options(num_ranks: int, mode: str) -> LearnerOptions:
    fields = yaml.safe_load((CONF / "learner/default.yaml").read_text())
    del fields["_target_"]
    return LearnerOptions(**fields | {"num_ranks": num_ranks, "tree_pass": mode, "threads": 1})


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(path=tmp_path_factory.mktemp("run"))
    folder.begin({})
    for step in range(STEPS):
        made = [random_rollout(31 * step + n, vocab=11, rollout_id=f"{step:05d}-{n}") for n in range(2 * GROUPS)]
        rollouts = [replace(each, step=step, reward=(n % 3) / 2) for n, each in enumerate(made)]
        for each in rollouts:
            with CallJournal(folder.calls / f"{each.id}.log", syncer=None) as log:
                for call in each.calls:
                    asyncio.run(log.commit(call, call.prompt_ids))
        folder.record(step, rollouts, {}, {})
    return folder


def batches(journal: RunFolder) -> list[TensorDict]:
    found = []
    for step in range(STEPS):
        rollouts = journal.rollouts(step)
        trees = [prune(grow(each), auxiliary="full") for each in rollouts]
        worth = {each.id: (each.reward or 0.0) for each in rollouts}
        found.append(pack([merge(trees[n : n + 2]) for n in range(0, len(trees), 2)], worth))
    return found


@asynccontextmanager
async def ranks(folder: Path, algo: Algo, mode: str, logs: Path) -> AsyncIterator[RankedLearner]:
    async with open_learner(options(2, mode), folder, algo, 0.8, logs) as learner:
        assert isinstance(learner, RankedLearner)
        yield learner


def near(one: dict[str, float], other: dict[str, float]) -> None:
    """The same figures, but for those of the passes themselves."""
    assert one.keys() == other.keys()
    of_passes = {f"learner/{name}" for name in ("passes", "largest_pass_tokens", "pass_fill", "tokens_per_s")}
    for name in one.keys() - of_passes:
        assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    ("algo", "mode"), [(grpo(updates=2, reference_kl=0.1, token_band=[0.01, 9.0]), "dfs"), (ppo(), "chain")]
)
async def test_two_ranks_learn_what_one_process_learns(
    tmp_path: Path, journal: RunFolder, algo: Algo, mode: str
) -> None:
    folder = tiny_policy(tmp_path / "policy")
    (folder / "tokenizer.json").write_text("{}")
    alone = Learner(options(1, mode), folder, algo, 0.8)
    steps = batches(journal)
    async with ranks(folder, algo, mode, tmp_path) as learner:
        learner.save(tmp_path / "first")
        for batch in steps:
            near(alone.update(batch), learner.update(batch))
            if learner.step == STEPS // 2:
                learner.save(tmp_path / "half")
        assert (learner.step, learner.version) == (alone.step, alone.version)
        torch.testing.assert_close(learner.score([1, 2, 3]), alone.score([1, 2, 3]), rtol=0, atol=1e-5)
        torch.testing.assert_close(
            learner.decision_logprobs(steps[0]), alone.decision_logprobs(steps[0]), rtol=1e-5, atol=1e-5
        )
        learner.export(tmp_path / "ranks")
    alone.export(tmp_path / "alone")
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("alone", "ranks")]
    for name, weight in weights[0].items():
        assert float((weight - weights[1][name]).abs().max()) <= 1e-5, name
    assert (tmp_path / "ranks" / "tokenizer.json").is_file()
    moved = load_file(folder / "model.safetensors")
    assert max(float((moved[name] - weight).abs().max()) for name, weight in weights[0].items()) > 1e-3
    async with ranks(folder, algo, mode, tmp_path) as again:
        again.resume(tmp_path / "half")
        for batch in steps[STEPS // 2 :]:
            again.update(batch)
        again.export(tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "ranks/model.safetensors").read_bytes()


async def test_errors_of_ranks_are_those_of_a_learner_and_a_dead_rank_is_named(
    tmp_path: Path, journal: RunFolder
) -> None:
    folder = tiny_policy(tmp_path / "policy")
    batch = batches(journal)[0]
    async with ranks(folder, grpo(), "chain", tmp_path) as learner:
        strange = batch.clone()
        strange["input_ids"][3] = 11
        with pytest.raises(LearnerError, match="the batch has token 11, and the policy knows 0 to 10"):
            learner.update(strange)
        assert learner.update(batch)["learner/version"] == 1
        with pytest.raises(LearnerError, match="does not fit this learner"):
            learner.resume(tmp_path / "nowhere")
        os.kill(learner._ranks[1][1].process.pid, signal.SIGKILL)
        with pytest.raises(LearnerError, match="rank 1 of the learner died"):
            learner.update(batch)


async def test_a_checkpoint_of_one_process_is_refused_by_ranks_with_the_reason(tmp_path: Path) -> None:
    folder = tiny_policy(tmp_path / "policy")
    Learner(options(1, "chain"), folder, grpo(), 0.8).save(tmp_path / "one")
    async with ranks(folder, grpo(), "chain", tmp_path) as learner:
        with pytest.raises(LearnerError, match="num_ranks=1"):
            learner.resume(tmp_path / "one")


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=2, alpha=4, targets="all-linear")])
async def test_ranks_share_a_model_that_transformers_computes(
    tmp_path: Path, journal: RunFolder, lora: LoraOptions | None
) -> None:
    """Its head is its embedding, which is one weight with two names."""
    config = GemmaConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=24, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    GemmaForCausalLM(config).save_pretrained(tmp_path / "policy")
    steps = batches(journal)[:4]
    alone = Learner(replace(options(1, "chain"), lora=lora), tmp_path / "policy", grpo(), 0.8)
    both = replace(options(2, "chain"), lora=lora)
    async with open_learner(both, tmp_path / "policy", grpo(), 0.8, tmp_path) as learner:
        for batch in steps[:2]:
            near(alone.update(batch), learner.update(batch))
        learner.save(tmp_path / "half")
        for batch in steps[2:]:
            near(alone.update(batch), learner.update(batch))
        learner.export(tmp_path / "ranks")
        learner.resume(tmp_path / "half")
        for batch in steps[2:]:
            learner.update(batch)
        learner.export(tmp_path / "again")
    alone.export(tmp_path / "alone")
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("alone", "ranks")]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert float((weight - weights[1][name]).abs().max()) <= 1e-5, name
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "ranks/model.safetensors").read_bytes()


def test_ranks_die_with_the_driver_however_it_ends(tmp_path: Path) -> None:
    folder = tiny_policy(tmp_path / "policy")
    script = textwrap.dedent(f"""
        import asyncio, sys
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
        from pathlib import Path
        from test_ranked_learner import grpo, options
        from clawexp.learner.ranked_learner import open_learner
        folder, logs = Path({str(folder)!r}), Path({str(tmp_path)!r})
        async def main():
            async with open_learner(options(2, "chain"), folder, grpo(), 1.0, logs) as one:
                print(*(process.process.pid for _, process in one._ranks), flush=True)
                await asyncio.sleep(600)
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        ranks_of_it = [int(word) for word in driver.stdout.readline().split()]
        assert len(ranks_of_it) == 2
        assert all(map(alive, ranks_of_it))
        driver.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(map(alive, ranks_of_it)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, ranks_of_it))


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
