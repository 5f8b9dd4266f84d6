import importlib.util
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from made_rollouts import call, random_rollout, rollout

from clawexp.errors import LearnerError
from clawexp.records import Span
from clawexp.tree.segment import Node, Segment
from clawexp.tree.tree import Split, Tree, grow

SESSIONS = int(os.environ.get("CLAWEXP_FUZZ_SESSIONS", "600"))


def shape(tree):
    """(ids, parent, sampled, edge) of each segment."""
    return [(s.ids.tolist(), s.parent, s.sampled, s.edge) for s in tree.segments]


def agreement(a, b):
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def shared_lengths(calls):
    """How much of each prompt any earlier call spells, by comparing it with each of them."""
    lengths = []
    for number, later in enumerate(calls):
        wholes = [earlier.prompt_ids + earlier.sampled_ids for earlier in calls[:number]]
        lengths.append(max((agreement(whole, later.prompt_ids) for whole in wholes), default=0))
    return lengths


def test_a_turn_grows_behind_the_answer_that_it_continues():
    tree = grow(
        rollout(
            [
                call("c0", [1, 2], [3, 9], cause="root", verdict="tool_calls"),
                call("c1", [1, 2, 3, 9, 5, 6], [7], cause="continue"),
            ]
        )
    )
    assert shape(tree) == [
        ([1, 2], -1, False, "continue"),
        ([3, 9], 0, True, "continue"),
        ([5, 6], 1, False, "tool"),
        ([7], 2, True, "continue"),
    ]
    assert [segment.calls for segment in tree.segments] == [("c0",), ("c0",), ("c1",), ("c1",)]


def test_an_answer_that_was_rewritten_on_its_way_is_context_alone():
    tree = grow(rollout([call("c0", [1, 2], [3, 9], cause="root", rewritten=True), call("c1", [1, 2, 3, 5], [7])]))
    assert [(s.ids.tolist(), s.trained) for s in tree.segments if s.sampled] == [
        ([3], False),
        ([9], False),
        ([7], True),
    ]


def test_random_rollouts_grow_into_the_tree_that_comparing_all_pairs_gives():
    for seed in range(SESSIONS):
        attempt = random_rollout(seed)
        tree = grow(attempt)
        shared = shared_lengths(attempt.calls)
        unique = sum(
            len(each.prompt_ids) - length + len(each.sampled_ids)
            for each, length in zip(attempt.calls, shared, strict=True)
        )
        assert tree.num_tokens == unique, seed


def test_random_rollouts_are_spelt_exactly_with_each_sampled_token_once():
    for seed in range(100):
        attempt = random_rollout(seed)
        tree = grow(attempt)
        sampled = sum(len(segment.ids) for segment in tree.segments if segment.sampled)
        assert sampled == sum(len(each.sampled_ids) for each in attempt.calls)
        answers = tree.answers()
        for each in attempt.calls:
            pieces = [tree.segments[index] for index in answers[(0, each.call_id)]]
            spelt = np.concatenate([s.ids for s in tree.path(answers[(0, each.call_id)][-1])])
            assert spelt.tolist() == [*each.prompt_ids, *each.sampled_ids]
            logprobs = np.concatenate([piece.logprobs for piece in pieces])
            assert np.array_equal(logprobs, np.array(each.logprobs, np.float32))


def test_every_token_keeps_the_version_of_its_span():
    spans = (Span(version=4, start=0, end=1), Span(version=5, start=1, end=3))
    tree = grow(rollout([call("c0", [1], [2, 3, 4], spans=spans)]))
    assert tree.segments[1].versions.tolist() == [4, 5, 5]


def test_a_prompt_of_the_environment_is_cut_where_another_leaves_it():
    tree = grow(rollout([call("c0", [1, 2, 3], [9]), call("c1", [1, 2, 4], [8], cause="subagent")]))
    assert shape(tree) == [
        ([1, 2], -1, False, "continue"),
        ([3], 0, False, "continue"),
        ([9], 1, True, "continue"),
        ([4], 0, False, "subagent"),
        ([8], 3, True, "continue"),
    ]
    assert tree.splits == ()


def test_a_prompt_that_leaves_an_answer_half_way_is_recorded():
    tree = grow(rollout([call("c0", [1], [2, 3, 4]), call("c1", [1, 2, 3, 7], [8], cause="rewrite")]))
    assert shape(tree) == [
        ([1], -1, False, "continue"),
        ([2, 3], 0, True, "continue"),
        ([4], 1, True, "continue"),
        ([7], 1, False, "rewrite"),
        ([8], 3, True, "continue"),
    ]
    assert [segment.calls for segment in tree.segments[1:3]] == [("c0",), ("c0",)]
    assert tree.splits == (Split(call_id="c0", at=2, by="c1"),)


def test_a_second_prompt_that_leaves_an_answer_at_the_same_place_is_recorded_too():
    calls = [call("c0", [1], [2, 3]), call("c1", [1, 2, 7], [8]), call("c2", [1, 2, 6], [8])]
    assert grow(rollout(calls)).splits == (
        Split(call_id="c0", at=1, by="c1"),
        Split(call_id="c0", at=1, by="c2"),
    )


def test_answers_to_the_identical_prompt_are_siblings_even_where_they_begin_alike():
    tree = grow(rollout([call("c0", [1], [2, 3]), call("c1", [1], [2, 4], cause="subagent")]))
    assert shape(tree) == [
        ([1], -1, False, "continue"),
        ([2, 3], 0, True, "continue"),
        ([2, 4], 0, True, "continue"),
    ]


@pytest.mark.parametrize(
    ("spoilt", "edge"),
    [
        ({"verdict": "text"}, "retry_infra"),
        ({"verdict": "malformed"}, "retry_model"),
        ({"verdict": "cut", "finish_reason": "length"}, "retry_model"),
        ({"verdict": "malformed", "finish_reason": "abort"}, "retry_infra"),
    ],
)
def test_an_answer_replaced_by_a_retry_is_named_for_what_was_wrong_with_it(spoilt, edge):
    calls = [
        call("c0", [1], [2], **spoilt),
        call("c1", [1], [3], cause="retry"),
        call("c2", [1, 3, 4], [5]),
    ]
    edges = {segment.calls[0]: segment.edge for segment in grow(rollout(calls)).segments if segment.sampled}
    assert edges == {"c0": edge, "c1": "continue", "c2": "continue"}


def test_an_answer_that_a_later_prompt_holds_was_not_lost_although_it_was_asked_for_again():
    calls = [call("c0", [1], [2]), call("c1", [1], [3], cause="retry"), call("c2", [1, 2, 4], [5])]
    edges = {segment.calls[0]: segment.edge for segment in grow(rollout(calls)).segments if segment.sampled}
    assert edges == {"c0": "continue", "c1": "retry_infra", "c2": "continue"}


def test_an_answer_was_not_lost_although_the_call_that_holds_it_was_cut_off_at_once():
    calls = [
        call("c0", [1], [2]),
        call("c1", [1, 2], [], finish_reason="abort", spans=()),
        call("c2", [1], [3], cause="retry"),
    ]
    edges = {segment.calls[0]: segment.edge for segment in grow(rollout(calls)).segments if segment.sampled}
    assert edges == {"c0": "continue", "c2": "retry_infra"}


def test_an_answer_given_twice_is_a_duplicate_and_goes_on_from_the_first():
    calls = [call("c0", [1], [2]), call("c1", [1], [2], cause="retry"), call("c2", [1, 2, 4], [5])]
    tree = grow(rollout(calls))
    assert shape(tree) == [
        ([1], -1, False, "continue"),
        ([2], 0, True, "continue"),
        ([4], 1, False, "continue"),
        ([5], 2, True, "continue"),
        ([2], 0, True, "duplicate"),
    ]


def test_a_call_that_sampled_nothing_is_context_only():
    tree = grow(rollout([call("c0", [1, 2], [], finish_reason="abort", spans=())]))
    assert shape(tree) == [([1, 2], -1, False, "continue")]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"logprobs": (-0.1,)}, "2 sampled ids but 1 logprobs"),
        ({"spans": (Span(version=0, start=0, end=1),)}, "version spans"),
        ({"spans": (Span(version=0, start=1, end=2),)}, "version spans"),
        ({"prompt_ids": ()}, "prompt is empty"),
        ({"prompt_ids": (1, 2**31)}, "an id is not within"),
        ({"sampled_ids": (2, -1)}, "an id is not within"),
        ({"logprobs": (-0.1, float("nan"))}, "a logprob is above 0 or not finite: nan"),
        ({"logprobs": (0.1, -0.1)}, r"a logprob is above 0 or not finite: 0\.1"),
        ({"logprobs": (-float("inf"), -0.1)}, "a logprob is above 0 or not finite: -inf"),
        ({"spans": (Span(version=-1, start=0, end=2),)}, "a version is below 0"),
    ],
)
def test_a_call_that_is_not_exact_is_refused_by_name(broken, words):
    with pytest.raises(LearnerError, match=f"rollout r0, call c7: .*{words}"):
        grow(rollout([replace(call("c7", [1], [2, 3]), **broken)]))


def test_two_calls_of_one_name_are_refused():
    with pytest.raises(LearnerError, match="call c0 is there twice"):
        grow(rollout([call("c0", [1], [2]), call("c0", [1], [3])]))


def test_segments_out_of_depth_first_order_are_refused():
    tree = grow(rollout([call("c0", [1], [2, 3]), call("c1", [1, 2, 3, 4], [5])]))
    with pytest.raises(LearnerError, match="depth-first"):
        Tree(rollouts=("r0",), calls=tree.calls, segments=(*tree.segments[:2], replace(tree.segments[2], parent=7)))


def test_an_answer_without_a_prompt_is_refused():
    first: Segment = grow(rollout([call("c0", [1], [2])])).segments[1]
    with pytest.raises(LearnerError, match="answer without a prompt"):
        Tree(rollouts=("r0",), calls=(("c0",),), segments=(replace(first, parent=-1),))


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    """The program that compares many more random sessions with an oracle."""
    spec = importlib.util.spec_from_file_location("fuzz_tree", Path(__file__).parents[2] / "benchmarks/fuzz_tree.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_every_token_of_random_sessions_stands_where_the_oracle_has_it(fuzz):
    seen, wrong = fuzz.play(range(500))
    assert wrong is None
    assert seen["rollouts"] == 1500
    edges = ("tool", "retry_infra", "retry_model", "compaction", "subagent", "rewrite", "duplicate")
    assert min(seen["splits"], *(seen[f"edge {edge}"] for edge in edges)) > 100


def test_a_tree_that_takes_the_newest_of_equal_places_is_found_out(fuzz, monkeypatch):
    exact = Node.branches
    monkeypatch.setattr(Node, "branches", lambda node: iter(sorted(exact(node), key=lambda each: -each[0].arrived)))
    _, wrong = fuzz.play(range(100))
    assert wrong is not None


def test_a_tree_that_matches_a_token_less_is_found_out(fuzz, monkeypatch):
    exact = Node.longest

    def shorter(node, ids):
        return exact(node, ids[:-1]) if len(ids) > 1 else exact(node, ids)

    monkeypatch.setattr(Node, "longest", shorter)
    _, wrong = fuzz.play(range(100))
    assert wrong is not None


def test_a_continuation_of_two_equal_answers_hangs_below_the_first_even_where_that_was_cut():
    calls = [
        call("c0", [1], [2, 3]),
        call("c1", [1], [2, 3], cause="retry"),
        call("c2", [1, 2, 9], [5], cause="rewrite"),
        call("c3", [1, 2, 3, 4], [6]),
    ]
    tree = grow(rollout(calls))
    path = tree.path(tree.answers()[(0, "c3")][0])
    assert [segment.calls for segment in path] == [("c0",), ("c0",), ("c0",), ("c3",), ("c3",)]


def test_the_same_prompt_ends_at_the_same_place_whatever_came_between():
    calls = [
        call("c0", [1], [5]),
        call("c1", [1], [5, 6]),
        call("c2", [1, 5, 6], [9], verdict="malformed"),
        call("c3", [1, 5], [6, 6]),
        call("c4", [1, 5, 6], [4], cause="retry"),
    ]
    tree = grow(rollout(calls))
    answers = {segment.calls[0]: segment for segment in tree.segments if segment.sampled}
    assert answers["c2"].parent == answers["c4"].parent
    assert (answers["c2"].edge, answers["c4"].edge) == ("retry_model", "continue")


def test_a_session_of_long_prompts_grows_in_time_linear_in_its_tokens():
    prompt = tuple(range(60_000))
    calls = []
    for number in range(40):
        calls.append(call(f"c{number}", prompt, range(50)))
        prompt = prompt + calls[-1].sampled_ids + tuple(range(100))
    tree = grow(rollout(calls))
    assert tree.num_tokens == 60_000 + 40 * 50 + 39 * 100


def experts(*rows):
    """Of one layer, two for each token: its number and the next."""
    return np.array([[[row, row + 1]] for row in rows], np.int16)


def told(tree):
    """The first expert of each token of each segment."""
    return [None if s.experts is None else s.experts[:, 0, 0].tolist() for s in tree.segments]


def test_experts_are_cut_with_their_tokens_and_completed_by_who_goes_on():
    first = call("c0", [1, 2], [3, 9], cause="root", experts=experts(10, 11, 12))
    tree = grow(rollout([first]))
    assert told(tree) == [[10, 11], [12, -1]]  # its last token was never computed
    second = call("c1", [1, 2, 3, 9, 5], [7, 7], parent="c0", shared=4, experts=experts(13, 14, 15))
    third = call("c2", [1, 8], [4], cause="subagent", parent="c0", shared=1, experts=experts(21))
    tree = grow(rollout([first, second, third]))
    assert [s.ids.tolist() for s in tree.segments] == [[1], [2], [3, 9], [5], [7, 7], [8], [4]]
    assert told(tree) == [[10], [11], [12, 13], [14], [15, -1], [21], [-1]]


def test_calls_without_experts_leave_theirs_open():
    calls = [call("c0", [1, 2], [3]), call("c1", [1, 2, 3, 5], [7, 7], shared=3, experts=experts(12, 13, 14))]
    assert told(grow(rollout(calls))) == [None, [12], [13], [14, -1]]


def test_more_experts_than_computed_tokens_are_refused():
    with pytest.raises(LearnerError, match="experts of 3 tokens"):
        grow(rollout([call("c0", [1, 2], [3], experts=experts(1, 2, 3))]))
