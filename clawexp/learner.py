"""Batches -> new weights and metrics, in one process. Knows nothing of harnesses or rollouts."""

import functools
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch import (
    gains,
    largest_part,
    split,
    trained,
    tree_token_ratio,
    validate,
    with_columns,
)
from clawexp.critic import Critic
from clawexp.errors import ConfigError, LearnerError
from clawexp.judgement import Judged, credited_now, judged, over_tokens
from clawexp.mismatch import divergence, mismatch
from clawexp.model.decoder import read_weights
from clawexp.model.load import load_policy
from clawexp.model.tree_pass import TokenLoss, TreeTokens, tree_backward, tree_logprobs
from clawexp.model.tree_policy import TreePolicy
from clawexp.protocols import Algo
from clawexp.spec import LearnerOptions
from clawexp.whole_folder import whole_folder

STATE = "learner.pt"
# What an engine needs beside weights and config.json: the tokenizer, its template, generation settings.
COMPANIONS = ("*token*.json", "*.jinja", "vocab.json", "merges.txt", "generation_config.json")


class Learner:
    """A policy in training. `step` counts updates asked for, `version` those that changed the weights."""

    def __init__(self, options: LearnerOptions, folder: Path, algo: Algo, temperature: float) -> None:
        """Start from the checkpoint in `folder`. Logprobs are those of sampling at `temperature`."""
        if options.threads:
            torch.set_num_threads(options.threads)
        self.options, self.folder, self.algo, self.temperature = options, folder, algo, temperature
        self.policy = load_policy(folder)
        self.optimiser = torch.optim.AdamW(
            self.policy.parameters(), lr=algo.lr, betas=algo.betas, weight_decay=algo.weight_decay
        )
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
            "learner/largest_pass_tokens": float(largest_part(batch, self.options.token_budget)),
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
        loss, _ = self._loss(batch, self._logprobs(batch, trained), trained(batch))
        return loss.item()

    def _check(self, batch: TensorDict) -> None:
        validate(batch)
        ids, vocab = batch["input_ids"], self.vocab_size
        if bool(((ids < 0) | (ids >= vocab)).any()):
            raise LearnerError(
                f"the batch has token {int(ids.max())}, and the policy knows 0 to {vocab - 1}. The engine serves "
                "another model than the learner trains, or the tokenizer is another's."
            )

    def _judged(self, batch: TensorDict) -> Judged:
        return judged(batch, self.algo, self.critic, self)

    def _credited(self, batch: TensorDict, advantage: Tensor) -> TensorDict:
        return credited_now(batch, advantage, self.algo, self)

    def decision_logprobs(self, batch: TensorDict) -> Tensor:
        """See `clawexp.judgement.Scorer`."""
        return self._logprobs(batch, _decides)

    def decision_states(self, batch: TensorDict) -> tuple[Tensor, Tensor]:
        """See `clawexp.judgement.Scorer`."""
        hidden = self.policy.embedding.new_empty(int(batch["decision"].sum()), self.policy.shape.hidden)
        return self._logprobs(batch, _decides, hidden), hidden

    def reference_logprobs(self, batch: TensorDict) -> Tensor:
        """See `clawexp.judgement.Scorer`."""
        return self._logprobs(batch, _decides, policy=self._reference)

    @functools.cached_property
    def _reference(self) -> TreePolicy:
        """The policy that the run began with. Takes as much memory as the policy."""
        return load_policy(self.folder).to(self.policy.embedding.dtype)

    def _logprobs(
        self,
        batch: TensorDict,
        where: Callable[[TensorDict], Tensor],
        hidden_out: Tensor | None = None,
        policy: TreePolicy | None = None,
    ) -> Tensor:
        """Of the tokens of a mask, in order. Notes the hidden states that they were read from in `hidden_out`.

        `policy`: another one than this learner's.
        """
        policy = policy or self.policy
        logprobs, done = [policy.embedding.new_empty(0)], 0
        mode, limit, temperature = self.options.tree_pass, self._graph_bytes, self.temperature
        for part in split(batch, self.options.token_budget):
            tokens, targets = _tokens(part), where(part).nonzero().flatten()
            hidden = None if hidden_out is None else hidden_out[done : done + len(targets)]
            found = tree_logprobs(policy, tokens, targets, temperature, mode, graph_bytes=limit, hidden_out=hidden)
            logprobs.append(found)
            done += len(targets)
        return torch.cat(logprobs)

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
        totals: dict[str, float] = defaultdict(float)
        logprobs, entropies = [], []
        self.optimiser.zero_grad()
        for part in split(batch, self.options.token_budget):
            targets = trained(part).nonzero().flatten()
            entropy = self.policy.embedding.new_empty(len(targets))
            token_loss = self._token_loss(part, targets, totals)
            logprobs.append(
                tree_backward(
                    self.policy,
                    _tokens(part),
                    targets,
                    token_loss,
                    self.temperature,
                    self.options.tree_pass,
                    graph_bytes=self._graph_bytes,
                    checkpointing=self.options.activation_checkpointing,
                    entropy_out=entropy,
                )
            )
            entropies.append(entropy)
        logprob = torch.cat(logprobs)
        return {
            "learner/loss": totals["loss"],
            "learner/clip_fraction": totals["clipped"] / len(logprob),
            "learner/tis_fraction": totals["truncated"] / len(logprob),
            **({"learner/mask_fraction": totals["masked"] / len(logprob)} if "masked" in totals else {}),
            "learner/entropy": torch.cat(entropies).mean().item(),
            **mismatch(batch["behaviour_logprob"][trained(batch)], logprob),
            **self._distance(batch, logprob),
        }

    def _distance(self, batch: TensorDict, logprob: Tensor) -> dict[str, float]:
        """From the reference, where there is one."""
        if "reference_logprob" not in batch:
            return {}
        return {"learner/reference_kl": divergence(logprob, batch["reference_logprob"][trained(batch)])}

    def _token_loss(self, part: TensorDict, targets: Tensor, totals: dict[str, float]) -> TokenLoss:
        def token_loss(logprob: Tensor, which: Tensor) -> Tensor:
            loss, counts = self._loss(part, logprob, targets[which])
            for name, value in {"loss": loss.detach(), **counts}.items():
                totals[name] += value.item()
            return loss

        return token_loss

    def _optimise(self) -> dict[str, float]:
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.algo.grad_clip)
        if not norm.isfinite():
            raise LearnerError(
                f"update {self.version + 1}: the norm of the gradient is {norm.item()}. The weights are "
                "unchanged; look at learner/delta_logprob_p999 of the steps before, and lower algo.lr."
            )
        warmth = min(1.0, (self.version + 1) / max(self.algo.warmup_steps, 1))
        for group in self.optimiser.param_groups:
            group["lr"] = self.algo.lr * warmth
        self.optimiser.step()
        self.version += 1
        return {"learner/grad_norm": norm.item(), "learner/lr": self.algo.lr * warmth}

    def score(self, ids: Sequence[int]) -> Tensor:
        """Logprob of each id but the first given those before it, at temperature 1, float32 [n - 1]."""
        place = torch.arange(len(ids))
        tokens = TreeTokens(input_ids=torch.tensor(ids), position=place, parent=place - 1)
        return tree_logprobs(self.policy, tokens, place[1:], 1.0, "chain")

    @property
    def _graph_bytes(self) -> float:
        return self.options.graph_gb * 1e9

    @property
    def vocab_size(self) -> int:
        return self.policy.shape.vocab

    def save(self, folder: Path) -> None:
        """Write all that `resume` needs beside an `export`. `folder` appears whole, and replaces an older one."""
        state = {
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "version": self.version,
            "rng": torch.get_rng_state(),
            "critic": self.critic.state() if self.critic else None,
        }
        with whole_folder(folder) as partial:
            self._write_policy(partial)
            torch.save(state, partial / STATE)

    def resume(self, folder: Path) -> None:
        """Take up what `save` wrote, to the bit. Raises LearnerError where it does not fit."""
        try:
            state = torch.load(folder / STATE, weights_only=True)
            self.policy.take(read_weights(folder))
            self.optimiser.load_state_dict(state["optimiser"])
            if self.critic:
                self.critic.take(state["critic"])
        except (OSError, RuntimeError, TypeError, ValueError, KeyError, ConfigError) as error:
            raise LearnerError(f"checkpoint {folder} does not fit this learner: {error}") from error
        self.step, self.version = state["step"], state["version"]
        torch.set_rng_state(state["rng"])

    def export(self, folder: Path) -> None:
        """Write a Hugging Face checkpoint that an engine can serve. `folder` appears whole, replacing an older one."""
        with whole_folder(folder) as partial:
            self._write_policy(partial)

    def _write_policy(self, folder: Path) -> None:
        self.policy.save(folder)
        for file in {file for pattern in COMPANIONS for file in self.folder.glob(pattern)}:
            shutil.copyfile(file, folder / file.name)


def _decides(batch: TensorDict) -> Tensor:
    return batch["decision"]


def _tokens(part: TensorDict) -> TreeTokens:
    return TreeTokens(input_ids=part["input_ids"], position=part["position"], parent=part["parent"])
