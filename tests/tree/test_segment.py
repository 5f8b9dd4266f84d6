import numpy as np
import pytest

from clawexp.tree.segment import Node, Segment, common_length


def answer(ids, **other):
    length = len(ids)
    fields = {
        "parent": -1,
        "sampled": True,
        "logprobs": np.linspace(-1, 0, length, dtype=np.float32),
        "versions": np.full(length, 3, np.int32),
        "owners": (0,),
        "calls": ("c0",),
        "edge": "tool",
        "kind": "main",
        "trained": True,
    }
    return Segment(ids=np.array(ids, np.int32), **fields | other)


@pytest.mark.parametrize(
    ("a", "b", "length"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 4], [1, 2, 3], 2), ([2], [1], 0)]
)
def test_common_length_is_that_of_the_common_beginning(a, b, length):
    assert common_length(np.array(a), np.array(b)) == length


def test_a_cut_divides_ids_logprobs_and_versions_alike():
    head, tail = answer([5, 6, 7]).cut(1)
    assert head.ids.tolist() == [5]
    assert tail.ids.tolist() == [6, 7]
    assert np.concatenate([head.logprobs, tail.logprobs]).tolist() == answer([5, 6, 7]).logprobs.tolist()
    assert (len(tail.versions), head.edge, tail.edge) == (2, "tool", "continue")


@pytest.mark.parametrize(
    "broken",
    [
        {"logprobs": np.zeros(1, np.float32)},
        {"versions": np.zeros(3, np.int32)},
        {"sampled": False},
        {"owners": (0, 0), "calls": ("a", "b")},
        {"owners": (0, 1)},
    ],
)
def test_a_segment_whose_columns_disagree_cannot_be_made(broken):
    with pytest.raises(ValueError, match=r"logprobs|pair"):
        answer([5, 6], **broken)


def test_an_empty_segment_cannot_be_made():
    with pytest.raises(ValueError, match="at least one id"):
        answer([])


def test_the_longest_spelling_is_found_behind_any_sibling_that_begins_alike():
    top = Node()
    top.add(answer([1, 2]))
    second = top.add(answer([1, 2]))
    below = second.add(answer([3, 4]))
    assert top.longest(np.array([1, 2, 3, 9])) == (below, 1, 3)


def test_of_equal_spellings_the_first_to_arrive_wins():
    top = Node()
    first = top.add(answer([1, 2]))
    top.add(answer([1, 2]))
    assert top.longest(np.array([1, 2])) == (first, 2, 2)


def test_flattening_is_depth_first_in_order_of_arrival():
    top = Node()
    first = top.add(answer([1]))
    top.add(answer([4]))
    first.add(answer([2])).add(answer([3]))
    first.add(answer([5]))
    segments = top.flatten()
    assert [segment.ids[0] for segment in segments] == [1, 2, 3, 5, 4]
    assert [segment.parent for segment in segments] == [-1, 0, 1, 0, -1]
