import pytest
import torch
from torch import Tensor

from clawexp.model.decoder import Policy
from clawexp.model.tree_memory import token_bytes
from clawexp.model.tree_pass import TreeTokens, tree_backward

TOKENS = 600


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen3_moe"])
def test_what_a_graph_takes_is_what_autograd_keeps(reference, architecture, checkpointing):
    policy = Policy.load(reference(architecture)[0])
    weights = {weight.untyped_storage().data_ptr() for weight in policy.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    place = torch.arange(TOKENS)
    tokens = TreeTokens(place % 97, place, place - 1)
    held: list[int] = []

    def token_loss(logprobs: Tensor, which: Tensor) -> Tensor:
        held.append(sum(kept.values()))  # the graph is whole, and nothing of it is gone
        return logprobs.sum()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        tree_backward(policy, tokens, place[-1:], token_loss, 1.0, "chain", checkpointing=checkpointing)
    expected = TOKENS * token_bytes(policy.shape, 4, True, checkpointing)
    if checkpointing:  # one layer of it is whole only later
        expected -= TOKENS * token_bytes(policy.shape, 4, False, True)
    assert held[0] == pytest.approx(expected, rel=0.15)
