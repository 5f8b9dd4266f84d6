import sys
from pathlib import Path

import pytest

from clawexp.cache import cache_folder, run_program, without_secrets
from clawexp.errors import HarnessError


def test_the_cache_moves_with_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("harness") == tmp_path / "clawexp" / "harness"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder("harness") == Path.home() / ".cache" / "clawexp" / "harness"


def test_keys_of_other_services_stay_here_and_those_of_a_registry_do_not() -> None:
    given = {
        "PATH": "/bin",
        "WANDB_API_KEY": "a",
        "HF_TOKEN": "b",
        "NPM_TOKEN": "c",
        "npm_config_x": "d",
        "PIP_CERT": "e",
    }
    assert without_secrets(given).keys() == {"PATH", "NPM_TOKEN", "npm_config_x", "PIP_CERT"}


def test_a_program_is_run_without_secrets_unless_it_is_given_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "abcdef")
    asking = [sys.executable, "-c", "import os; print(os.environ.get('HF_TOKEN'))"]
    assert run_program(asking, HarnessError) == "None\n"
    assert run_program(asking, HarnessError, env={"HF_TOKEN": "abcdef"}) == "abcdef\n"


def test_a_program_that_fails_is_quoted_with_what_helps() -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no such package')"]
    with pytest.raises(HarnessError, match=r"ended with 1; try another. It said:\nno such package"):
        run_program(failing, HarnessError, cure="try another")
    with pytest.raises(HarnessError, match="no-such-program"):
        run_program(["no-such-program"], HarnessError)
    with pytest.raises(HarnessError, match="timed out"):
        run_program(["sleep", "60"], HarnessError, timeout_s=0.1)
