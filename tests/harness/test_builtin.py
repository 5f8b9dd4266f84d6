import pytest
from pydantic import ValidationError
from scripted_model import option

from clawexp.spec import Harness


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
