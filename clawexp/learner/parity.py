"""Whether engine and learner speak with the same weights, on the tokens that a step really sampled."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from clawexp.errors import EngineError
from clawexp.records import Call, Rollout
from clawexp.spec import ParityOptions

SHOWN_IDS = 8
"""Of the worst token's context."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of the tokens that were sampled from the weights that the learner holds. `delta` is learner less engine."""

    tokens: int
    mean_delta: float
    """Of |delta|."""
    max_delta: float
    """Of |delta|, at the worst token."""
    engine: float
    learner: float
    path: tuple[int, ...]
    """Ids from the root to the worst token."""

    def within(self, options: ParityOptions) -> bool:
        """False also where a logprob is not a number."""
        return self.mean_delta <= options.mean_delta and self.max_delta <= options.max_delta


def agreement(batch: TensorDict, logprob: Tensor, version: int) -> Agreement | None:
    """Compare the learner's logprobs of a batch's decisions, in order, with those that the engine gave.

    Only tokens of this version of the weights count; None where there is none.
    """
    tokens = batch["decision"].nonzero().flatten()
    current = batch["version"][tokens] == version
    tokens, ours = tokens[current], logprob[current].double()
    if not len(tokens):
        return None
    theirs = batch["behaviour_logprob"][tokens].double()
    delta = (ours - theirs).abs()
    worst = int(delta.nan_to_num(torch.inf).argmax())
    return Agreement(
        tokens=len(tokens),
        mean_delta=delta.mean().item(),
        max_delta=delta[worst].item(),
        engine=theirs[worst].item(),
        learner=ours[worst].item(),
        path=_path(batch, int(tokens[worst])),
    )


def require(found: Agreement, options: ParityOptions, rollouts: Sequence[Rollout], step: int, text: str) -> None:
    """Raise EngineError where engine and learner do not agree. `text` is what the worst token says."""
    if found.within(options):
        return
    call = spoken(found.path, rollouts)
    where = f"call {call.call_id} of rollout {call.rollout_id}" if call else "a call that is in no rollout"
    raise EngineError(
        f"before the update of step {step}, engine and learner disagree on what was sampled: over {found.tokens} "
        f"tokens, |delta logp| is {found.mean_delta:.3g} in the mean (at most {options.mean_delta:g}) and "
        f"{found.max_delta:.3g} at worst (at most {options.max_delta:g}). The worst is {text!r} (id {found.path[-1]}, "
        f"place {len(found.path) - 1} after ids {list(found.path[-1 - SHOWN_IDS : -1])}) in {where}: engine "
        f"{found.engine:.4f}, learner {found.learner:.4f}. Look at whether the engine serves the weights that it was "
        "given last (engine.log, engine/probe_delta), at its dtype, at its sampling (capture.temperature; no top-k, "
        "top-p or penalties), and whether another learner.tree_pass agrees. The bounds are parity.mean_delta and "
        "parity.max_delta."
    )


def require_rendering(boundary: str, learner: str) -> None:
    """Raise EngineError where the two digests of `clawexp.capture.rendering` differ."""
    if boundary != learner:
        raise EngineError(
            "boundary and learner turn conversations into different tokens: the rendering digest of the capture "
            f"process is {boundary}, that of the checkpoint which the learner writes is {learner}. Look at the "
            "tokenizer and chat template in the run's folder weights/ beside those of model.path, at model.rendering, "
            "and at the version of the package `renderers`."
        )


def spoken(path: Sequence[int], rollouts: Sequence[Rollout]) -> Call | None:
    """The first call that has these ids, from its first on."""
    path = tuple(path)
    calls = (call for rollout in rollouts for call in rollout.calls)
    return next((call for call in calls if (call.prompt_ids + call.sampled_ids)[: len(path)] == path), None)


def _path(batch: TensorDict, token: int) -> tuple[int, ...]:
    ids = []
    while token >= 0:
        ids.append(int(batch["input_ids"][token]))
        token = int(batch["parent"][token])
    return tuple(reversed(ids))
