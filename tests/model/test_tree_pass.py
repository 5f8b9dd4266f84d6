import copy

import pytest
import torch
from path_passes import TEMPERATURE, all_but_roots, forest, mixed_signs, per_path, tree, weighted
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from clawexp.errors import LearnerError
from clawexp.model import tree_pass
from clawexp.model.decoder import Policy
from clawexp.model.tree_memory import token_bytes
from clawexp.model.tree_pass import TreeTokens, tree_backward, tree_logprobs

MODES = pytest.mark.parametrize("mode", ["chain", "dfs"])
ARCHITECTURES = pytest.mark.parametrize("architecture", ["qwen3", "llama"])


@pytest.fixture(params=[6, 40, 2048])
def pack_tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small packs make `dfs` open many chains; all trees here fit into the largest."""
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", request.param)
    return request.param


@MODES
@ARCHITECTURES
def test_float64_gradients_equal_those_of_one_pass_per_path(reference, architecture, mode, pack_tokens):
    folder, model = reference(architecture)
    policy, model = Policy.load(folder).double(), without_float32_norms(model.double())
    tokens, targets, weights = forest(seed=3), all_but_roots(forest(seed=3)), mixed_signs(3)
    got = tree_backward(policy, tokens, targets, weighted(weights), TEMPERATURE, mode)
    want = per_path(model, tokens, targets, weights)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    assert gradient_error(policy, model) <= 1e-10


@MODES
@ARCHITECTURES
def test_float32_gradients_equal_those_of_one_pass_per_path(reference, architecture, mode):
    folder, model = reference(architecture, tied=architecture == "llama")
    policy, tokens, weights = Policy.load(folder), forest(seed=4), mixed_signs(4)
    targets = all_but_roots(tokens)[::2]
    got = tree_backward(policy, tokens, targets, weighted(weights), TEMPERATURE, mode)
    want = per_path(model, tokens, targets, weights)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    assert gradient_error(policy, model) <= 1e-5


@MODES
def test_checkpointing_changes_no_number(reference, mode, monkeypatch):
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", 6)
    policy, again = (Policy.load(reference()[0]) for _ in range(2))
    tokens, weights = forest(seed=9), mixed_signs(9)
    found = []
    for each, checkpointing in ((policy, False), (again, True)):
        targets, loss = all_but_roots(tokens), weighted(weights)
        found.append(tree_backward(each, tokens, targets, loss, 1.0, mode, checkpointing=checkpointing))
    assert torch.equal(*found)
    for one, other in zip(policy.parameters(), again.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=0)


@pytest.mark.parametrize("graph_tokens", [10, 20, 40])
def test_auto_is_exact_wherever_it_begins_to_go_depth_first(reference, graph_tokens, monkeypatch):
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", 6)
    folder, model = reference()
    policy, model = Policy.load(folder).double(), without_float32_norms(model.double())
    tokens, targets, weights = forest(seed=3), all_but_roots(forest(seed=3)), mixed_signs(3)
    limit = graph_tokens * token_bytes(policy.shape, 8, True, True)
    options = {"graph_bytes": limit, "checkpointing": True}
    got = tree_backward(policy, tokens, targets, weighted(weights), TEMPERATURE, "auto", **options)
    torch.testing.assert_close(got, per_path(model, tokens, targets, weights), rtol=0, atol=1e-10)
    assert gradient_error(policy, model) <= 1e-10


@pytest.mark.parametrize(("graph_tokens", "like"), [(0, "dfs"), (10_000, "chain")])
def test_auto_goes_depth_first_where_the_graph_would_be_too_large(reference, graph_tokens, like, monkeypatch):
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", 6)
    policy, tokens = Policy.load(reference()[0]), forest(seed=3)
    limit = graph_tokens * token_bytes(policy.shape, 4, True, False)

    def pieces(mode: tree_pass.Mode) -> list[int]:
        asked: list[int] = []

        def token_loss(logprobs: Tensor, which: Tensor) -> Tensor:
            asked.append(len(which))
            return logprobs.sum()

        tree_backward(policy, tokens, all_but_roots(tokens), token_loss, 1.0, mode, graph_bytes=limit)
        return asked

    assert pieces("auto") == pieces(like)
    assert len(pieces("chain")) < len(pieces("dfs"))


@MODES
def test_every_child_of_a_branch_point_is_supervised(reference, mode, monkeypatch):
    monkeypatch.setattr(tree_pass, "PACK_TOKENS", 2)
    folder, model = reference()
    policy = Policy.load(folder)
    tokens = tree([7, 3, 9, 4, 8, 5], parent=[-1, 0, 1, 0, 3, 0])
    targets = torch.tensor([1, 3, 5])
    got = tree_logprobs(policy, tokens, targets, 1.0, mode)
    with torch.no_grad():
        row = model(torch.tensor([[7]])).logits[0, 0].log_softmax(-1)
    torch.testing.assert_close(got, row[[3, 4, 5]], rtol=0, atol=1e-5)


@MODES
def test_results_keep_the_order_of_the_targets(reference, mode, pack_tokens):
    policy, tokens = Policy.load(reference()[0]), forest(seed=5)
    targets = all_but_roots(tokens)
    shuffled = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    entropy = torch.empty(len(targets))
    got = tree_logprobs(policy, tokens, targets[shuffled], TEMPERATURE, mode, entropy_out=entropy)
    straight = torch.empty(len(targets))
    want = tree_logprobs(policy, tokens, targets, TEMPERATURE, mode, entropy_out=straight)
    torch.testing.assert_close(got, want[shuffled], rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, straight[shuffled], rtol=0, atol=1e-5)


def test_entropy_is_that_of_the_sampling_distribution(reference):
    folder, model = reference()
    tokens, entropy = tree([5, 6, 7], parent=[-1, 0, 1]), torch.empty(2)
    tree_logprobs(Policy.load(folder), tokens, torch.tensor([1, 2]), 0.5, "chain", entropy_out=entropy)
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6]])).logits[0] / 0.5
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=logits).entropy())


@MODES
def test_hidden_states_are_those_that_each_target_is_read_from(reference, mode, pack_tokens):
    policy, tokens = Policy.load(reference()[0]), forest(seed=8)
    targets = all_but_roots(tokens)
    targets = targets[torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))]
    hidden = torch.empty(len(targets), policy.shape.hidden)
    logprobs = tree_logprobs(policy, tokens, targets, TEMPERATURE, mode, hidden_out=hidden)
    rows = (policy.logits(hidden) / TEMPERATURE).log_softmax(-1)
    torch.testing.assert_close(rows.gather(1, tokens.input_ids[targets, None])[:, 0], logprobs, rtol=0, atol=1e-5)


@MODES
def test_the_head_is_exact_when_logits_come_in_several_chunks(reference, mode, monkeypatch):
    monkeypatch.setattr("clawexp.model.target_head.CHUNK_FLOATS", 5 * 97)
    folder, model = reference()
    policy, tokens, weights = Policy.load(folder), forest(seed=6), mixed_signs(6)
    targets = all_but_roots(tokens)
    tree_backward(policy, tokens, targets, weighted(weights), TEMPERATURE, mode)
    per_path(model, tokens, targets, weights)
    assert gradient_error(policy, model) <= 1e-5


def test_gradients_add_up_over_calls(reference):
    policy, tokens = Policy.load(reference()[0]), forest(seed=7)
    targets, weights = all_but_roots(tokens), mixed_signs(7)
    tree_backward(policy, tokens, targets, weighted(weights), 1.0, "chain")
    once = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]
    tree_backward(policy, tokens, targets, weighted(weights), 1.0, "dfs")
    for grad, parameter in zip(once, policy.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("parent", "position", "target", "reason"),
    [
        ([-1, 0, 1], [0, 1, 2], 0, "root"),
        ([-1, 0, 1], [0, 1, 3], 1, "position"),
        ([-1, 2, 1], [0, 1, 2], 1, "before its child"),
        ([-1, 0, 1, 0, 2], [0, 1, 2, 1, 3], 1, "depth-first"),
    ],
)
def test_what_is_no_tree_is_refused(reference, parent, position, target, reason):
    tokens = TreeTokens(*(torch.tensor(x) for x in (list(range(len(parent))), position, parent)))
    with pytest.raises(LearnerError, match=reason):
        tree_logprobs(Policy.load(reference()[0]), tokens, torch.tensor([target]), 1.0, "chain")


def gradient_error(policy: Policy, model: PreTrainedModel) -> float:
    """L2 distance of the two gradients relative to the reference's."""
    grads = copy.deepcopy(policy)
    for parameter, source in zip(grads.parameters(), policy.parameters(), strict=True):
        assert source.grad is not None
        parameter.data = source.grad
    want = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    got = grads.weights()
    assert got.keys() == want.keys()
    off = sum(float((got[name] - grad).square().sum()) for name, grad in want.items())
    return (off / sum(float(grad.square().sum()) for grad in want.values())) ** 0.5


def without_float32_norms(model: PreTrainedModel) -> PreTrainedModel:
    """transformers computes norms in float32 whatever the model's type; give it norms that do not."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Qwen3RMSNorm | LlamaRMSNorm):
                norm = torch.nn.RMSNorm(len(child.weight), child.variance_epsilon, dtype=child.weight.dtype)
                norm.weight = torch.nn.Parameter(child.weight.detach())
                setattr(module, name, norm)
    return model
