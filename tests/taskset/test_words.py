import re
from typing import get_args

import pytest

from clawexp.taskset.families import level1, level2, level3, level4
from clawexp.taskset.words import POOLS, Pool, half, split_of


@pytest.mark.parametrize("pool", get_args(Pool))
def test_a_pool_falls_into_two_halves_of_use(pool: Pool) -> None:
    train, held_out = set(half(pool, "train")), set(half(pool, "eval"))
    assert not train & held_out
    assert train | held_out == set(POOLS[pool].split())
    assert min(len(train), len(held_out)) >= 0.4 * len(train | held_out)


def test_the_split_of_a_word_never_changes_and_ignores_capitals() -> None:
    assert [split_of(word) for word in ("port", "mode", "anna")] == ["eval", "eval", "train"]
    assert split_of("DEBUG") == split_of("debug")


def test_no_word_of_the_pools_stands_in_a_phrasing() -> None:
    phrasings = [
        text
        for level in (level1, level2, level3, level4)
        for name, texts in vars(level).items()
        if name.isupper() and isinstance(texts, tuple)
        for text in texts
    ]
    assert len(phrasings) >= 40
    spoken = {word for text in phrasings for word in re.findall(r"[a-z]+", re.sub(r"\{\w+\}", "", text).lower())}
    assert not spoken & {word.lower() for pool in POOLS.values() for word in pool.split()}


def test_words_are_short_and_plain() -> None:
    assert all(re.fullmatch(r"[a-z]{2,8}|[A-Z]{4,6}", word) for pool in POOLS.values() for word in pool.split())
