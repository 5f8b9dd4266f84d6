import pytest
import torch
from made_rollouts import call, rollout, two_turns

from clawexp.batch.pack import pack
from clawexp.errors import EngineError
from clawexp.learner.parity import Agreement, agreement, require, require_rendering, spoken
from clawexp.records import Rollout, Span
from clawexp.spec import ParityOptions
from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import grow

OPTIONS = ParityOptions(every=1, mean_delta=0.02, max_delta=1.0)
ROLLOUTS = [two_turns("r0"), two_turns("r1", last=4)]


def batch_of(rollouts: list[Rollout]):
    return pack(
        [merge([prune(grow(each), auxiliary="full") for each in rollouts])], {each.id: 1.0 for each in rollouts}
    )


def found_with(change: torch.Tensor | float, version: int = 0) -> Agreement | None:
    """Where the learner differs by so much from the engine, token by token."""
    batch = batch_of(ROLLOUTS)
    return agreement(batch, batch["behaviour_logprob"][batch["decision"]] + change, version)


def test_equal_logprobs_agree():
    found = found_with(0.0)
    assert found is not None
    assert (found.tokens, found.mean_delta, found.max_delta) == (5, 0.0, 0.0)
    require(found, OPTIONS, ROLLOUTS, 0, "x")


def test_the_worst_token_is_named_with_both_values_and_its_call():
    change = torch.zeros(5)
    change[1] = -2.0  # tokens of answers in depth-first order: 3 9, 7, 4, and 4 of the sub-agents
    found = found_with(change)
    assert found is not None
    assert found.path == (1, 2, 3, 9)
    assert found.learner == pytest.approx(found.engine - 2.0)
    with pytest.raises(EngineError) as caught:
        require(found, OPTIONS, ROLLOUTS, 3, "nine")
    said = str(caught.value)
    assert "step 3" in said
    assert "'nine' (id 9, place 3 after ids [1, 2, 3]) in call c0 of rollout r0" in said
    assert f"engine {found.engine:.4f}, learner {found.learner:.4f}" in said


@pytest.mark.parametrize("change", [0.03, -0.03, float("nan")])
def test_a_small_difference_everywhere_is_too_much_and_so_is_no_number(change):
    found = found_with(change)
    assert found is not None
    assert not found.within(OPTIONS)


def test_tokens_of_other_weights_do_not_count():
    assert found_with(5.0, version=1) is None
    halves = (Span(version=0, start=0, end=1), Span(version=1, start=1, end=2))
    batch = batch_of([rollout([call("c0", [1, 2], [3, 9], cause="root", spans=halves)])])
    found = agreement(batch, batch["behaviour_logprob"][batch["decision"]] + torch.tensor([5.0, 0.001]), 1)
    assert found is not None
    assert found.tokens == 1
    assert found.max_delta == pytest.approx(0.001, abs=1e-6)


def test_a_batch_without_decisions_says_nothing():
    batch = pack([grow(two_turns())], {})
    assert agreement(batch, torch.zeros(0), 0) is None


def test_a_path_is_found_in_the_call_that_spoke_it():
    found = spoken((1, 2, 3, 9, 5, 6, 4), ROLLOUTS)
    assert found is not None
    assert found.call_id == "c1"
    assert spoken((1, 1), ROLLOUTS) is None


def test_another_rendering_is_refused_with_both_digests():
    require_rendering("a", "a")
    with pytest.raises(EngineError, match="capture process is a, that of the checkpoint which the learner writes is b"):
        require_rendering("a", "b")
