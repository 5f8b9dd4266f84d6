import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from clawexp.commands.arguments import table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACEHOLDERS = ("NAME", "RUN", "FOLDER", "FILE", "runs/...")


def commands() -> list[str]:
    """Every command of the pages that runs clawexp, without its comment."""
    found = []
    for page in PAGES:
        for line in page.read_text().splitlines():
            match = re.match(r"\s*(?:`)?(python -m clawexp[^`#]*)", line)
            if match and not any(word in line for word in PLACEHOLDERS):
                found.append(match.group(1).strip())
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_pages_is_accepted(command: str) -> None:
    words = shlex.split(command)[3:]
    verbs = ("eval", "doctor", "prepare", "replay", "jobs", "ps", "reap")
    dry = [] if words[:1] and (words[0] in verbs or words[0] == "--help") else ["--dry-run"]
    if words[:1] == ["prepare"] or "resume=auto" in words:
        # Preparing fetches packages, and there is no run to resume here: the overrides are what is checked.
        words, dry = [word for word in words if word not in ("prepare", "resume=auto")], ["--dry-run"]
    if "--cfg" in words:
        dry = []
    done = subprocess.run(
        [sys.executable, "-m", "clawexp", *words, *dry], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_name_commands() -> None:
    assert len(commands()) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_has_every_option_in_its_table() -> None:
    assert table() in (ROOT / "README.md").read_text(), "print it anew: just table"


def test_the_readme_shows_the_loop_as_it_is() -> None:
    shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert shown
    source = (ROOT / "clawexp" / "experiment.py").read_text()
    for line in shown.group(1).splitlines():
        assert line.strip() in source


def test_the_first_screen_holds_the_two_commands_that_set_everything_up() -> None:
    head = (ROOT / "README.md").read_text().splitlines()[:30]
    assert any("pip install -e ." in line and "python -m clawexp" in line for line in head)
    assert any("pytest" in line for line in head)
