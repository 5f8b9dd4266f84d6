import re
import shlex

import pytest
from omegaconf import OmegaConf

from clawexp.commands.compose import composed
from clawexp.commands.plan import print_plan
from clawexp.errors import ConfigError


def plan(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    print_plan(composed(overrides))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("harness", "program"), [("builtin", ".clawexp.py"), ("pi", "cli.js"), ("openclaw", "openclaw.mjs")]
)
def test_a_plan_shows_the_command_of_every_harness_without_its_key(
    harness: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = plan(capsys, f"harness={harness}", "num_tasks=3", "group_size=5", "steps=7")
    assert f"# would start, 3 tasks x 5 rollouts a step for 7 steps: harness {harness}\n" in page
    (command,) = [line for line in page.splitlines() if program in line and line.startswith("#   ")]
    words = shlex.split(command.removeprefix("#   "))
    assert words[0].startswith("/")
    assert not any("KEY" in word or "sk-" in word for word in words)


def test_a_plan_is_the_resolved_config_and_comments(capsys: pytest.CaptureFixture[str]) -> None:
    page = plan(capsys, "harness=[builtin,pi]", "steps=7", "model.max_tokens=${steps}")
    read = OmegaConf.create(page)
    assert read.steps == read.model.max_tokens == 7
    assert re.findall(r"a step for 7 steps: harness (\w+)", page) == ["builtin", "pi"]


def test_the_numbers_of_a_harness_are_used_unless_the_experiment_says_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = plan(capsys, "harness.builtin.num_tasks=2", "harness.builtin.group_size=6")
    assert "# would start, 2 tasks x 6 rollouts a step" in page


def test_a_harness_that_is_not_prepared_comes_with_the_line_that_prepares_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert re.search(r"# would first prepare harness pi: .*prepare harness=pi", plan(capsys, "harness=pi"))


def test_an_experiment_that_cannot_be_has_no_plan() -> None:
    with pytest.raises(ConfigError, match="steps"):
        print_plan(composed(["steps=0"]))
