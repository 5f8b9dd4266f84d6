import pytest
import torch
from made_rollouts import CONFIG, EXPERTS, tiny_policy
from path_passes import TEMPERATURE, all_but_roots, forest, mixed_signs, weighted
from torch import Tensor

from clawexp.model import tree_pass
from clawexp.model.checkpoint import has_experts
from clawexp.model.decoder import Policy
from clawexp.model.tree_attention import tree_attention
from clawexp.model.tree_pass import TreeTokens, tree_backward, tree_logprobs
from clawexp.model.tree_plan import blocks_of

LAYERS, CHOSEN, NUMBER = CONFIG["num_hidden_layers"], EXPERTS["num_experts_per_tok"], EXPERTS["num_experts"]


@pytest.mark.parametrize("normalised", [True, False])
def test_logits_are_those_of_transformers_however_the_chosen_weigh(reference, normalised):
    folder, model = reference("qwen3_moe", norm_topk_prob=normalised)
    ids = torch.tensor([5, 17, 3, 90, 41, 8, 8, 2])
    with torch.no_grad():
        want = model(ids[None]).logits[0].log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    found = tree_logprobs(Policy.load(folder), chain(ids), torch.arange(1, len(ids)), 1.0, "chain")
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


def test_experts_are_told_from_a_config_by_any_of_their_names():
    assert has_experts(EXPERTS)
    for counts in ({"num_local_experts": 8}, {"text_config": {"n_routed_experts": 64}}, {"moe_num_experts": 4}):
        assert has_experts({"model_type": "other", **counts})
    assert not has_experts(CONFIG)
    assert not has_experts({"num_experts": 0, "num_experts_per_tok": 2, "id2label": {0: "a"}})


@pytest.fixture
def policy(tmp_path) -> Policy:
    return Policy.load(tiny_policy(tmp_path / "policy", vocab_size=97, **EXPERTS)).double()


def chain(ids: Tensor, experts: Tensor | None = None) -> TreeTokens:
    place = torch.arange(len(ids))
    return TreeTokens(ids, place, place - 1, experts)


def some_experts(count: int) -> Tensor:
    """Two different ones for each token and layer, and none for some tokens."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(count, LAYERS, NUMBER, generator=generator).topk(CHOSEN).indices.short()
    drawn[::7] = -1
    return drawn


def own_choices(policy: Policy, ids: Tensor) -> Tensor:
    """What the router of each layer chooses, of a chain."""
    chosen = torch.full((len(ids), LAYERS, CHOSEN), -1, dtype=torch.int16)
    blocks = blocks_of(torch.arange(len(ids)).numpy() - 1)

    def note(layer: int, own: Tensor) -> Tensor:
        chosen[:, layer] = own.short()
        return own

    def see(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tree_attention(q, k, v, blocks, None)

    policy.states(ids, torch.arange(len(ids)), see, False, note)
    return chosen


def gradient(policy: Policy) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in policy.parameters() if weight.grad is not None])


def test_its_own_choice_replayed_changes_no_bit(policy):
    ids = torch.arange(20) % 97
    targets = torch.arange(1, 20)
    plain = tree_logprobs(policy, chain(ids), targets, 1.0, "chain")
    replayed = tree_logprobs(policy, chain(ids, own_choices(policy, ids)), targets, 1.0, "chain")
    assert torch.equal(plain, replayed)
    other = tree_logprobs(policy, chain(ids, some_experts(20)), targets, 1.0, "chain")
    assert float((plain - other).abs().max()) > 0.01


@pytest.mark.parametrize("mode", ["chain", "dfs"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_over_trees_that_replays_equals_one_over_each_path(policy, mode, checkpointing, monkeypatch):
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", 10)
    tokens, targets, weights = forest(seed=3), all_but_roots(forest(seed=3)), mixed_signs(3)
    experts = some_experts(len(tokens.input_ids))
    tokens = TreeTokens(tokens.input_ids, tokens.position, tokens.parent, experts)
    found = tree_backward(policy, tokens, targets, weighted(weights), TEMPERATURE, mode, checkpointing=checkpointing)
    found_gradient = gradient(policy)
    policy.zero_grad()
    want = torch.empty_like(found)
    for which, target in enumerate(targets.tolist()):
        path = [target]
        while int(tokens.parent[path[0]]) >= 0:
            path.insert(0, int(tokens.parent[path[0]]))
        alone = chain(tokens.input_ids[path], experts[path])
        loss = weighted(weights[which : which + 1])
        want[which] = tree_backward(policy, alone, torch.tensor([len(path) - 1]), loss, TEMPERATURE, "chain")[0]
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    assert float((found_gradient - gradient(policy)).norm() / found_gradient.norm()) <= 1e-12


def test_gradients_reach_the_router_through_the_weights_of_replayed_experts(policy):
    ids = torch.arange(20) % 97
    tree_backward(policy, chain(ids, some_experts(20)), torch.tensor([19]), lambda found, _: found.sum(), 1.0, "chain")
    for layer in policy.layers:
        assert layer.experts is not None
        assert layer.experts.router.grad is not None
        assert float(layer.experts.router.grad.abs().sum()) > 0


def test_experts_that_no_token_goes_to_have_a_gradient_of_zero(policy):
    ids = torch.arange(20) % 97
    experts = torch.tensor([3, 5], dtype=torch.int16).expand(20, LAYERS, CHOSEN)
    tree_backward(policy, chain(ids, experts), torch.tensor([19]), lambda found, _: found.sum(), 1.0, "chain")
    layer = policy.layers[0].experts
    assert layer is not None
    assert layer.gate_up.grad is not None
    used = layer.gate_up.grad.abs().sum((1, 2)) > 0
    assert used.nonzero().flatten().tolist() == [3, 5]


def test_alone_a_token_has_the_same_bits_whoever_shares_its_experts(policy):
    layer = policy.layers[0].experts
    assert layer is not None
    x = torch.randn(6, CONFIG["hidden_size"], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = layer(x, None)
    layer.alone = True
    torch.testing.assert_close(layer(x, None), together, rtol=0, atol=1e-12)
    other = x.clone()
    other[1:] = other[1:].flip(0) + 1
    assert torch.equal(layer(x, None)[0], layer(other, None)[0])
