import pytest

from clawexp.runtime.containerfile import copied_from, lines, reached, sources, substituted

STAGES = """\
# syntax=x
ARG V=1
FROM golang:1.22 AS Build
RUN make \\
    # why
    all
from --platform=linux/amd64 debian:12
COPY --from=build /a /a
COPY --chown=1 --from=ghcr.io/x/uv:1 /uv /bin/
COPY --from=0 /b /b
FROM scratch
FROM build as last
"""


def test_an_instruction_has_the_number_of_its_first_line_and_is_joined() -> None:
    told = [str(line) for line in lines(STAGES)]
    assert told[:4] == [
        "line 2: ARG V=1",
        "line 3: FROM golang:1.22 AS Build",
        "line 4: RUN make all",
        "line 7: FROM --platform=linux/amd64 debian:12",
    ]
    assert [str(line) for line in lines("RUN a \\")] == ["line 1: RUN a"]


def test_images_are_told_from_stages() -> None:
    assert sources(STAGES) == ["golang:1.22", "debian:12"]
    assert copied_from(STAGES) == ["ghcr.io/x/uv:1"]


def test_other_images_take_their_place_and_nothing_else_changes() -> None:
    changed = substituted(STAGES, {"golang:1.22": "localhost/g", "debian:12": "localhost/d"}, {"ghcr.io/x/uv:1": "uv"})
    expected = STAGES.replace("golang:1.22", "localhost/g").replace("debian:12", "localhost/d")
    assert changed == expected.replace("ghcr.io/x/uv:1", "uv")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("", None),
        ("STEP 1/3: FROM debian\n", "line 1: FROM debian"),
        ("STEP 1/3: FROM debian\nSTEP 2/3: RUN a   &&   b\n", "line 2: RUN a && b"),
        ("[2/2] STEP 2/3: RUN a && b\nout\n[2/2] STEP 3/3: RUN a && b\n", "line 4: RUN a && b"),
    ],
)
def test_the_line_that_a_build_was_at_is_found(printed: str, expected: str | None) -> None:
    line = reached("FROM debian\nRUN a \\\n  && b\nRUN a && b\n", printed)
    assert (str(line) if line else None) == expected
