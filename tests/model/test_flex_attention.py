import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask, flex_attention
from tree_shapes import parents, visible

from clawexp.model import flex_attention as flex
from clawexp.model.decoder import Policy
from clawexp.model.flex_attention import masked_attention, tree_mask
from clawexp.model.tree_attention import tree_attention
from clawexp.model.tree_plan import blocks_of

CPU = torch.device("cpu")
UNFUSED = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@settings(deadline=None, max_examples=40)
@given(parent=parents(), block=st.sampled_from([4, 8]))
def test_its_mask_is_who_is_on_the_path_of_whom(parent, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "BLOCK", block)
        mask = tree_mask(parent, CPU)
    size, seen = mask.shape[-1], visible(parent)
    exact = create_mask(mask.mask_mod, 1, 1, size, size, CPU)[0, 0].numpy()
    assert np.array_equal(exact[: len(parent), : len(parent)], seen.astype(bool))
    assert exact.any(1).all()
    assert np.array_equal(exact, covered(mask, exact, block))


def covered(mask, exact: np.ndarray, block: int) -> np.ndarray:
    """What a kernel sees that computes the listed blocks alone, full ones without asking the mask."""
    found = np.zeros_like(exact)
    for counts, indices, full in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        for row, count in enumerate(counts[0, 0].tolist()):
            for column in indices[0, 0, row, :count].tolist():
                place = np.ix_(range(row * block, (row + 1) * block), range(column * block, (column + 1) * block))
                found[place] = True if full else exact[place]
    return found


@UNFUSED
@settings(deadline=None, max_examples=5)
@given(parent=parents(most=150))
def test_it_sees_what_the_attention_for_cpus_sees(parent):
    q, k, v = made(len(parent), 4), made(len(parent), 2), made(len(parent), 2)
    found = masked_attention(q, k, v, tree_mask(parent, CPU), flex_attention)
    torch.testing.assert_close(found, tree_attention(q, k, v, blocks_of(parent), None), rtol=0, atol=1e-5)


def made(count: int, heads: int) -> Tensor:
    return torch.randn(count, heads, 16, generator=torch.Generator().manual_seed(heads))


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_half_precision_is_near_to_float32(reference, architecture):
    """What a GPU computes in, but for its kernels: norms, rotation and the head."""
    policy = Policy.load(reference(architecture)[0])
    half = Policy.load(reference(architecture)[0]).bfloat16()
    hidden, place = policy.embed(torch.arange(40)), torch.arange(40)
    mask, parent = blocks_of(place.numpy() - 1), None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tree_attention(q.float(), k.float(), v.float(), mask, parent).to(q.dtype)

    found = half.layers[0](half.embed(torch.arange(40)), half.rope(place), attend)
    want = policy.layers[0](hidden, policy.rope(place), attend)
    assert found.dtype == torch.bfloat16
    assert (found - want).norm() <= 0.02 * want.norm()
