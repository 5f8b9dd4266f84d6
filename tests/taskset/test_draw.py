from clawexp.taskset.draw import Draw
from clawexp.taskset.words import split_of


def test_a_draw_repeats_itself_for_the_same_key_only() -> None:
    assert Draw("train", "a").words("key", 9) == Draw("train", "a").words("key", 9)
    assert Draw("train", "a").words("key", 9) != Draw("train", "b").words("key", 9)


def test_no_word_comes_twice_and_filler_avoids_them() -> None:
    draw = Draw("eval", "a")
    words = draw.words("mark", 10)
    assert len(set(words)) == 10
    assert not {draw.filler("mark") for _ in range(100)} & set(words)


def test_numbers_and_sums_belong_to_the_split() -> None:
    draw = Draw("eval", "a")
    for digits in (2, 3, 4):
        number = draw.number(digits)
        assert len(number) == digits
        assert split_of(number) == "eval"
    for _ in range(50):
        numbers = Draw("train", str(_)).addends(2, 5)
        assert len(set(numbers)) == 5
        assert split_of(str(sum(map(int, numbers)))) == "train"
