from hypothesis import given
from hypothesis import strategies as st

from clawexp.learner.ranks import balanced


def test_parts_go_to_the_rank_that_has_least():
    assert balanced([5, 3, 4, 1], 2) == [[0, 3], [1, 2]]
    assert balanced([7], 3) == [[0], [], []]
    assert balanced([], 2) == [[], []]


@given(sizes=st.lists(st.integers(1, 1000), max_size=40), num_ranks=st.integers(1, 8))
def test_every_part_is_one_ranks_and_no_rank_has_more_than_its_share_and_a_part(sizes, num_ranks):
    shares = balanced(sizes, num_ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    loads = [sum(sizes[index] for index in share) for share in shares]
    assert max(loads) <= sum(sizes) / num_ranks + max(sizes, default=0)
    assert loads[0] > 0 or not sizes
