import re

import pytest

from clawexp.commands.arguments import DECIDES, conf_folder, groups
from clawexp.commands.doctor import run


@pytest.fixture(scope="module")
def report() -> str:
    """What doctor says here, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda line: lines.append(line))
        run([])
    return "\n".join(lines)


def test_every_option_that_one_chooses_has_a_line(report: str) -> None:
    for group in DECIDES:
        for option in groups(conf_folder())[group]:
            assert f" {group}={option} " in report


def test_each_line_says_ok_or_no_and_why(report: str) -> None:
    for line in report.splitlines():
        assert re.fullmatch(r"(ok|no)  +[\w/]+=\S+ +\S.*", line), line


def test_what_ships_with_the_project_works(report: str) -> None:
    assert re.search(r"^ok +harness=builtin +ready$", report, re.M)
    assert re.search(r"^ok +model=tiny +", report, re.M)


def test_what_is_not_there_comes_with_the_line_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    run([])
    said = capsys.readouterr().out
    assert re.search(r"^no +harness=pi +not prepared: .*prepare harness=pi", said, re.M)
    assert re.search(r"^no +model=smollm2_135m +.*prepare model=smollm2_135m", said, re.M)
