"""Batches -> new weights and metrics, alone or as one of several ranks. Knows nothing of harnesses or rollouts."""

import functools
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from clawexp.batch.batch import gains, trained, tree_token_ratio, validate, with_columns
from clawexp.errors import ConfigError, LearnerError
from clawexp.learner.critic import Critic
from clawexp.learner.device import device_of
from clawexp.learner.judgement import Judged, credited_now, judged, over_tokens
from clawexp.learner.mismatch import divergence, mismatch
from clawexp.learner.passes import Passes
from clawexp.learner.ranks import Alone, Ranks
from clawexp.model.decoder import read_weights
from clawexp.model.load import load_policy
from clawexp.model.tree_pass import TreeTokens, tree_logprobs
from clawexp.model.tree_policy import TreePolicy
from clawexp.protocols import Algo, Imitating
from clawexp.spec import LearnerOptions
from clawexp.whole_folder import check_seal, seal

ALONE = Alone()
STATE = "learner.pt"
UNFIT = (
    *(OSError, EOFError, RuntimeError, TypeError, ValueError, KeyError),
    *(UnpicklingError, CheckpointException, ConfigError),
)
"""What reading a checkpoint may raise where it was written by something else, or was damaged since."""
# What an engine needs beside weights and config.json: the tokenizer, its template, generation settings.
COMPANIONS = ("*token*.json", "*.jinja", "vocab.json", "merges.txt", "generation_config.json")


class Learner:
    """A policy in training. `step` counts updates asked for, `version` those that changed the weights."""

    def __init__(
        self, options: LearnerOptions, folder: Path, algo: Algo, temperature: float, ranks: Ranks = ALONE
    ) -> None:
        """Start from the checkpoint in `folder`. Logprobs are those of sampling at `temperature`.

        Where there are several `ranks`, each has a learner, and all are told to do the same.
        """
        if options.threads:
            torch.set_num_threads(options.threads)
        self.options, self.folder, self.algo, self.temperature = options, folder, algo, temperature
        self.device, self.ranks = device_of(options), ranks
        self.policy = load_policy(folder, options.lora).to(self.device)
        ranks.shard(self.policy)
        self.passes = Passes(ranks, options, temperature)
        weights = [weight for weight in self.policy.parameters() if weight.requires_grad]
        self.optimiser = torch.optim.AdamW(weights, lr=algo.lr, betas=algo.betas, weight_decay=algo.weight_decay)
        self.critic = Critic(algo.critic, self.policy.shape.hidden) if algo.critic else None
        self.step = self.version = 0

    def update(self, batch: TensorDict) -> dict[str, float]:
        """`algo.updates` optimiser steps on a batch of `clawexp.batch`; metrics named `learner/...` and `critic/...`.

        Where the batch has no `old_logprob`, one update is made and `recompute_old` is off, the policy before the
        update is the old one: the ratio is 1, its gradient is right, and no second pass is made. For several calls
        with one batch, give it `with_old_logprob` first. A batch without loss changes nothing: `learner/skipped` is 1.
        While a critic warms up, it alone learns. Raises LearnerError for a broken batch or a gradient that is not
        finite; the weights are unchanged.
        """
        started = time.perf_counter()
        self._check(batch)
        self.step += 1
        found = self._judged(batch)
        batch = self._credited(found.batch, found.advantage)
        loss_at = trained(batch)
        metrics = {
            "learner/skipped": float(not loss_at.any()),
            "learner/tree_token_ratio": tree_token_ratio(batch),
            "learner/unique_tokens": float(len(loss_at)),
            "learner/trained_tokens": float(loss_at.sum()),
            **self.passes.measures(batch),
            **found.metrics,
        }
        if loss_at.any():
            if (self.algo.recompute_old or self.algo.updates > 1) and "old_logprob" not in batch:
                batch = self.with_old_logprob(batch)
            warming = self.critic is not None and self.critic.warming
            metrics |= self._warm(batch) if warming else self._updates(batch, found.advantage)
        if self.critic and found.seen:
            metrics |= self.critic.update(found.seen)
        metrics["learner/version"] = float(self.version)
        metrics["learner/tokens_per_s"] = len(loss_at) / (time.perf_counter() - started)
        return metrics

    def with_old_logprob(self, batch: TensorDict) -> TensorDict:
        """The same batch with `old_logprob` of the policy as it is now."""
        return with_columns(batch, old_logprob=over_tokens(batch, self.decision_logprobs(batch)))

    def evaluate_loss(self, batch: TensorDict) -> float:
        """The loss that `update` would report, without changing anything."""
        self._check(batch)
        found = self._judged(batch)
        batch = self._credited(found.batch, found.advantage)
        where = trained(batch)
        loss, _ = self._loss(batch, self.passes.logprobs(self.policy, batch, where), where)
        return loss.item()

    def _check(self, batch: TensorDict) -> None:
        validate(batch)
        ids, vocab = batch["input_ids"], self.vocab_size
        strange = ids[(ids < 0) | (ids >= vocab)]
        if len(strange):
            raise LearnerError(
                f"the batch has token {int(strange[0])}, and the policy knows 0 to {vocab - 1}. The engine serves "
                "another model than the learner trains, or the tokenizer is another's."
            )

        if self.options.routing == "replay" and self.policy.shape.experts and not isinstance(self.algo, Imitating):
            self._require_experts(batch)

    def _require_experts(self, batch: TensorDict) -> None:
        if "experts" not in batch and bool(batch["sampled"].any()):
            raise LearnerError(
                "learner.routing=replay: the engine did not tell which experts it sent the tokens of this batch to. "
                "Choose learner.routing=own, or model/engine=embedded."
            )

    def _judged(self, batch: TensorDict) -> Judged:
        return judged(batch, self.algo, self.critic, self)

    def _credited(self, batch: TensorDict, advantage: Tensor) -> TensorDict:
        return credited_now(batch, advantage, self.algo, self)

    def decision_logprobs(self, batch: TensorDict) -> Tensor:
        """See `clawexp.learner.judgement.Scorer`."""
        return self.passes.logprobs(self.policy, batch, batch["decision"])

    def decision_states(self, batch: TensorDict) -> tuple[Tensor, Tensor]:
        """See `clawexp.learner.judgement.Scorer`."""
        size = (int(batch["decision"].sum()), self.policy.shape.hidden)
        hidden = torch.zeros(size, dtype=self.policy.embedding.dtype)
        return self.passes.logprobs(self.policy, batch, batch["decision"], hidden), hidden

    def reference_logprobs(self, batch: TensorDict) -> Tensor:
        """See `clawexp.learner.judgement.Scorer`. Its router decides by itself: it is a policy of its own."""
        return self.passes.logprobs(self._reference, batch.exclude("experts"), batch["decision"])

    @functools.cached_property
    def _reference(self) -> TreePolicy:
        """The policy that the run began with. Takes as much memory as the policy, of several ranks a share each."""
        policy = load_policy(self.folder).to(self.device, self.policy.embedding.dtype)
        self.ranks.shard(policy)
        return policy

    def _loss(self, batch: TensorDict, logprob: Tensor, where: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Of the tokens `where`, a mask or indices, whose logprobs are given."""
        old = batch["old_logprob"][where] if "old_logprob" in batch else logprob.detach()
        columns = (batch[key][where] for key in ("behaviour_logprob", "positive", "negative"))
        beside = {key: batch[key][where] for key in ("share", "reference_logprob") if key in batch}
        return self.algo.loss(logprob, old, *columns, **beside)

    def _warm(self, batch: TensorDict) -> dict[str, float]:
        """What an update of the policy would report of a batch with `old_logprob`, without one."""
        where = trained(batch)
        logprob = batch["old_logprob"][where]
        loss, _ = self._loss(batch, logprob, where)
        return {"learner/loss": loss.item(), **mismatch(batch["behaviour_logprob"][where], logprob)}

    def _updates(self, batch: TensorDict, advantage: Tensor) -> dict[str, float]:
        """Metrics are of the first update; the fraction that is clipped is the mean of all."""
        metrics = self._forward_backward(batch) | self._optimise()
        clipped, gained = [metrics["learner/clip_fraction"]], int(gains(batch).sum())
        for _ in range(self.algo.updates - 1):
            batch = self._credited(batch, advantage) if self.algo.sequence_ratio else batch
            lost = 1 - int(gains(batch).sum()) / max(gained, 1)  # to the clipping of sequences, perhaps all
            if trained(batch).any():
                lost += self._forward_backward(batch)["learner/clip_fraction"]
                self._optimise()
            clipped.append(lost)
        return metrics | {"learner/clip_fraction": fmean(clipped)}

    def _forward_backward(self, batch: TensorDict) -> dict[str, float]:
        """Add up the gradient over micro-batches."""
        self.optimiser.zero_grad()
        where = trained(batch)
        found = self.passes.backward(self.policy, batch, where, self._loss)
        logprob, counts = found.logprob, found.counts
        return {
            "learner/loss": counts["loss"],
            "learner/clip_fraction": counts.get("clipped", 0.0) / len(logprob),
            "learner/tis_fraction": counts.get("truncated", 0.0) / len(logprob),
            **({"learner/mask_fraction": counts["masked"] / len(logprob)} if "masked" in counts else {}),
            "learner/entropy": found.entropy.mean().item(),
            **mismatch(batch["behaviour_logprob"][where], logprob),
            **self._distance(batch, logprob),
        }

    def _distance(self, batch: TensorDict, logprob: Tensor) -> dict[str, float]:
        """From the reference, where there is one."""
        if "reference_logprob" not in batch:
            return {}
        return {"learner/reference_kl": divergence(logprob, batch["reference_logprob"][trained(batch)])}

    def _optimise(self) -> dict[str, float]:
        norm = self.ranks.norm(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.algo.grad_clip))
        if not math.isfinite(norm):
            raise LearnerError(
                f"update {self.version + 1}: the norm of the gradient is {norm}. The weights are "
                "unchanged. Look at learner/delta_logprob_p999 and learner/grad_norm of the steps before: where they "
                "rise, lower algo.lr; where they do not, look at the rewards and the checkpoint's own weights."
            )
        warmth = min(1.0, (self.version + 1) / max(self.algo.warmup_steps, 1))
        for group in self.optimiser.param_groups:
            group["lr"] = self.algo.lr * warmth
        self.optimiser.step()
        self.version += 1
        return {"learner/grad_norm": norm, "learner/lr": self.algo.lr * warmth}

    def score(self, ids: Sequence[int], experts: NDArray[np.int16] | None = None) -> Tensor:
        """Logprob of each id but the first given those before it, at temperature 1, float32 [n - 1].

        `experts`, as an engine told them, are used again where the learner's routing is replayed.
        """
        place = torch.arange(len(ids))
        replayed = None
        if experts is not None and self.options.routing == "replay":
            replayed = torch.from_numpy(np.concatenate([experts, np.full_like(experts[:1], -1)]))
        tokens = TreeTokens(input_ids=torch.tensor(ids), position=place, parent=place - 1, experts=replayed)
        with self.ranks.whole(self.policy):
            return tree_logprobs(self.policy, tokens, place[1:], 1.0, "chain")

    @property
    def vocab_size(self) -> int:
        return self.policy.shape.vocab

    def save(self, folder: Path) -> None:
        """Write all that `resume` needs beside an `export`. `folder` appears whole, and replaces an older one."""
        with self.ranks.whole_folder(folder) as partial:
            state = {
                "optimiser": self.ranks.optimiser_state(self.policy, self.optimiser, partial),
                "step": self.step,
                "version": self.version,
                "rng": torch.get_rng_state(),
                "critic": self.critic.state() if self.critic else None,
            }
            self._write_policy(partial)
            if self.ranks.first:
                torch.save(state, partial / STATE)
                seal(partial)

    def resume(self, folder: Path) -> None:
        """Take up what `save` wrote, to the bit. Raises LearnerError where it does not fit, or is damaged."""
        try:
            check_seal(folder)
            state = torch.load(folder / STATE, weights_only=True)
            self.ranks.take(self.policy, read_weights(folder, self.policy.file))
            self.ranks.take_optimiser_state(self.policy, self.optimiser, state["optimiser"], folder)
            if self.critic:
                self.critic.take(state["critic"])
            self.step, self.version = state["step"], state["version"]
            torch.set_rng_state(state["rng"])
        except UNFIT as error:
            raise LearnerError(
                f"checkpoint {folder} does not fit this learner: {type(error).__name__}: {error}. It is damaged, or of "
                "other options or another version of clawexp; without its folder, the run goes on from the one before."
            ) from error

    def export(self, folder: Path) -> None:
        """Write a Hugging Face checkpoint that an engine can serve. `folder` appears whole, replacing an older one."""
        with self.ranks.whole_folder(folder) as partial:
            self._write_policy(partial)

    def _write_policy(self, folder: Path) -> None:
        with self.ranks.whole(self.policy):
            if not self.ranks.first:
                return
            self.policy.save(folder)
        for file in {file for pattern in COMPANIONS for file in self.folder.glob(pattern)}:
            shutil.copyfile(file, folder / file.name)
