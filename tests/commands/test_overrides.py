import pytest

from clawexp.commands.compose import composed
from clawexp.commands.overrides import assigned, choices, first_point, parse, sweep_points


def test_a_line_that_cannot_be_read_is_a_problem_and_the_rest_is_read() -> None:
    parsed, problems = parse(["a=1", "b=[1", "c", "d=x=y", "~e", "f=range(2,2)"])
    assert [override.input_line for override in parsed] == ["a=1", "~e"]
    assert [problem.where for problem in problems] == ["b=[1", "c", "d=x=y", "f=range(2,2)"]


def test_the_values_of_a_sweep_are_those_that_its_points_have() -> None:
    (swept, ranged, globbed, listed, plain, deleted), problems = parse(
        ["a=1e-4,x", "b=range(0,3)", "harness=glob(p*)", "c=[1,2]", "d=null", "~e"]
    )
    assert not problems
    assert choices(swept) == [1e-4, "x"]
    assert choices(ranged) == [0, 1, 2]
    assert choices(globbed) == ["pi"]
    assert choices(listed) == [[1, 2]]
    assert choices(plain) == [None]
    assert choices(deleted) == []


def test_a_sweep_can_be_narrowed_to_its_first_point() -> None:
    parsed, _ = parse(["a=3,4", "+b=5,6", "c=[1,2]", "~d"])
    assert [first_point(override) for override in parsed] == ["a=3", "+b=5", "c=[1,2]", "~d"]


def test_a_sweep_makes_every_combination_in_order() -> None:
    assert sweep_points(["a=1,2", "b=x", "c='p,q',r"]) == [
        ["a=1", "b=x", "c='p,q'"],
        ["a=1", "b=x", "c=r"],
        ["a=2", "b=x", "c='p,q'"],
        ["a=2", "b=x", "c=r"],
    ]
    assert sweep_points([]) == [[]]


@pytest.mark.parametrize("text", ["/runs/2026-01-01/1-a", "a b=c", "it's, [odd] {x} é", "null", "-1"])
def test_a_text_can_be_given_to_a_key_whatever_is_in_it(text: str) -> None:
    assert str(composed([assigned("model.name", text)]).model.name) == text.replace("null", "None")


def test_a_plain_text_is_not_quoted() -> None:
    assert assigned("resume", "/runs/2026-01-01/101112-ab") == "resume=/runs/2026-01-01/101112-ab"
