import pytest

from clawexp.commands.prepare import run
from clawexp.errors import ConfigError


def test_what_is_ready_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["harness=builtin"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["harness builtin: ready", "model tiny: ready"]
    assert printed.err == ""


def test_a_runtime_is_prepared_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runtime=podman"]) == 0
    assert "runtime: ready" in capsys.readouterr().out.splitlines()


def test_flags_and_wrong_overrides_are_refused() -> None:
    with pytest.raises(ConfigError, match="prepare takes overrides"):
        run(["-m", "harness=builtin,pi"])
    with pytest.raises(ConfigError, match="several values"):
        run(["harness=builtin,pi"])
    with pytest.raises(ConfigError, match="no such harness"):
        run(["harness=opencalw"])
