"""A mixture of experts whose learner's routers are a little off, with the engine's choices and with its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from made_rollouts import EXPERTS, call, rollout, tiny_policy
from tensordict import TensorDict
from torch import Tensor

from clawexp.algo.grpo import Grpo
from clawexp.batch.batch import load, save, with_columns
from clawexp.batch.pack import pack
from clawexp.errors import LearnerError
from clawexp.learner.learner import Learner
from clawexp.learner.mismatch import mismatch
from clawexp.model.decoder import Policy
from clawexp.model.tree_attention import tree_attention
from clawexp.model.tree_pass import TreeTokens, tree_logprobs
from clawexp.model.tree_plan import blocks_of
from clawexp.spec import LearnerOptions
from clawexp.tree.tree import grow

CONF = Path(__file__).parents[2] / "conf"
TOKENS = 400
SIZE: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "head_dim": 16, "num_hidden_layers": 3}
MIXTURE: dict[str, Any] = {**SIZE, **EXPERTS, "moe_intermediate_size": 32}
DENSE = MIXTURE | {"num_experts_per_tok": MIXTURE["num_experts"]}
"""The same weights with every token at every expert: all that the router decides is what they weigh."""


def options(file: str, **other: Any) -> dict[str, Any]:
    fields = yaml.safe_load((CONF / file).read_text())
    del fields["_target_"]
    return fields | other


def learner(folder: Path, routing: str = "replay", **algo: Any) -> Learner:
    fields = options("learner/default.yaml", routing=routing)
    return Learner(LearnerOptions(**fields), folder, Grpo(**options("algo/grpo.yaml", **algo)), temperature=1.0)


def sampled_by(folder: Path) -> TensorDict:
    """One long answer with the logprobs of a checkpoint, and the experts that it used."""
    policy = Policy.load(folder)
    ids = torch.randint(0, 97, (TOKENS,), generator=torch.Generator().manual_seed(3))
    place, blocks = torch.arange(TOKENS), blocks_of(torch.arange(TOKENS).numpy() - 1)
    assert policy.shape.experts is not None
    used = torch.full((TOKENS, policy.shape.layers, policy.shape.experts.chosen), -1, dtype=torch.int16)

    def note(layer: int, own: Tensor) -> Tensor:
        used[:, layer] = own.short()
        return own

    def see(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tree_attention(q, k, v, blocks, None)

    with torch.no_grad():
        policy.states(ids, place, see, False, note)
    logprobs = tree_logprobs(policy, TreeTokens(ids, place, place - 1), place[1:], 1.0, "chain").tolist()
    prompt, *answer = ids.tolist()
    told = call("c0", [prompt], answer, cause="root", logprobs=tuple(logprobs), experts=used[:-1].numpy())
    return pack([grow(rollout([told]))], {"r0": 1.0})


def perturbed(folder: Path, noise: float) -> Path:
    """The same checkpoint with some relative noise in its routers."""
    policy, generator = Policy.load(folder), torch.Generator().manual_seed(5)
    for layer in policy.layers:
        assert layer.experts is not None
        router = layer.experts.router
        with torch.no_grad():
            router.mul_(1 + noise * torch.randn(router.shape, generator=generator))
    policy.save(folder.with_name(folder.name + "-off"))
    return folder.with_name(folder.name + "-off")


def apart(engine: Path, noise: float, routing: str) -> dict[str, float]:
    """|delta logp| between an engine and a learner with perturbed routers, on what the engine sampled."""
    batch = sampled_by(engine)
    found = learner(perturbed(engine, noise), routing).decision_logprobs(batch)
    behaviour = batch["behaviour_logprob"][batch["decision"]]
    return mismatch(behaviour, found) | {"max": float((found - behaviour).abs().max())}


@pytest.mark.parametrize("noise", [0.003, 0.01])
def test_replay_brings_perturbed_routers_to_the_level_of_a_model_without_a_choice(tmp_path, noise):
    """With every token at every expert, the same noise in the same routers can only change weights, smoothly: that is
    the dense level. With a choice of two it turns choices over, unless they are replayed.
    """
    mixture = tiny_policy(tmp_path / "mixture", **MIXTURE)
    dense = apart(tiny_policy(tmp_path / "dense", **DENSE), noise, "own")
    own, replayed = apart(mixture, noise, "own"), apart(mixture, noise, "replay")
    for name in ("learner/delta_logprob_mean", "learner/delta_logprob_p999", "learner/kl_k3", "max"):
        assert replayed[name] <= dense[name], name
    assert own["learner/kl_k3"] > 5 * dense["learner/kl_k3"]
    assert own["max"] > 5 * dense["max"]


def test_the_same_weights_agree_to_rounding(tmp_path):
    assert apart(tiny_policy(tmp_path / "mixture", **MIXTURE), 0.0, "replay")["max"] < 1e-4


def test_an_update_learns_by_replayed_experts_and_moves_the_router(tmp_path):
    folder = tiny_policy(tmp_path / "mixture", **MIXTURE)
    batch = sampled_by(folder)
    save(batch, tmp_path / "batch")
    one = learner(perturbed(folder, 0.01), reference_kl=0.1)
    assert isinstance(one.policy, Policy)
    experts = one.policy.layers[0].experts
    assert experts is not None
    before = experts.router.detach().clone()
    metrics = one.update(load(tmp_path / "batch"))
    assert metrics["learner/kl_k3"] < 0.01
    assert not torch.equal(before, experts.router)
    own = learner(folder.with_name("mixture-off"), "own").update(batch)
    assert own["learner/kl_k3"] > 10 * metrics["learner/kl_k3"]


def test_a_batch_that_tells_of_no_experts_is_refused_unless_the_router_shall_decide(tmp_path):
    folder = tiny_policy(tmp_path / "mixture", **MIXTURE)
    batch = sampled_by(folder).exclude("experts")
    with pytest.raises(LearnerError, match=r"learner\.routing=own"):
        learner(folder).update(batch)
    assert learner(folder, "own").update(batch)["learner/skipped"] == 0


def test_experts_of_another_model_are_refused(tmp_path):
    batch = sampled_by(tiny_policy(tmp_path / "mixture", **MIXTURE))
    with pytest.raises(LearnerError, match="has none"):
        learner(tiny_policy(tmp_path / "dense", **SIZE)).update(batch)
    with pytest.raises(LearnerError, match=r"\(3, 2\) \(layers, chosen\) of 9 experts or more, .* of 8"):
        learner(tmp_path / "mixture").update(with_columns(batch, experts=batch["experts"] + 1))


def test_a_score_is_replayed_as_a_batch_is(tmp_path):
    folder = tiny_policy(tmp_path / "mixture", **MIXTURE)
    batch = sampled_by(folder)
    ids, experts, want = batch["input_ids"].tolist(), batch["experts"][:-1].numpy(), batch["behaviour_logprob"][1:]
    off = perturbed(folder, 0.01)
    replayed, own = learner(off).score(ids, experts), learner(off, "own").score(ids, experts)
    assert float((replayed - want).abs().max()) < 1
    assert float((own - want).abs().max()) > 2
