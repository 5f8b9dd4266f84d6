import pytest
from pydantic import ValidationError
from scripted_model import option

from clawexp.protocols import Harness
from clawexp.records import Finished


def test_it_is_a_harness_that_needs_no_preparation():
    harness = option("builtin")
    assert isinstance(harness, Harness)
    assert harness.prepared() is None


def test_a_shell_makes_it_untrusted():
    assert option("builtin").needs().trusted
    assert not option("builtin", tools=["read", "exec"]).needs().trusted


def test_an_unknown_tool_is_refused():
    with pytest.raises(Exception, match="tools") as caught:
        option("builtin", tools=["fly"])
    assert isinstance(caught.value.__cause__, ValidationError)


@pytest.mark.parametrize("line", [b"[1, 2]", b"7", b"null", b"[" * 100_000, b'{"turns": "many", "ended": 3}', b""])
def test_a_last_line_that_the_model_had_printed_is_no_report(line: bytes) -> None:
    finished = Finished(code=0, stdout=b"done\n" + line, stderr=b"", wall_s=1.0, timed_out=False)
    assert option("builtin").counts(finished) == {}
    assert option("builtin").outcome(finished) is None
