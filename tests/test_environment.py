import json
import subprocess
import sys
from pathlib import Path

import clawexp
from clawexp.commands.compose import build, composed
from clawexp.environment import describe_environment


def test_versions_machine_and_harnesses_are_noted_and_fit_into_json() -> None:
    noted = describe_environment(build(composed(["harness=[builtin,pi]"])))
    assert json.loads(json.dumps(noted)) == noted
    assert noted["clawexp"] == clawexp.__version__
    assert noted["python"] == sys.version.split()[0]
    assert {"torch", "mitmproxy", "hydra-core"} <= set(noted["packages"])
    assert noted["cores"] >= 1
    assert "0.73.1" in noted["harness"]["pi"]


def test_the_commit_and_whether_files_differ_from_it_are_noted() -> None:
    folder = Path(clawexp.__file__).parents[1]
    head = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True)
    noted = describe_environment(build(composed([])))["git"]
    if head.returncode:
        assert noted is None
    else:
        assert noted["commit"] == head.stdout.strip()
        assert isinstance(noted["dirty"], bool)


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, clawexp\n"
        "clawexp.__file__ = str(pathlib.Path(sys.argv[1]) / 'clawexp' / '__init__.py')\n"
        "from clawexp.environment import describe_environment\n"
        "from clawexp.commands.compose import build, composed\n"
        "assert describe_environment(build(composed([])))['git'] is None\n"
    )
    (tmp_path / "clawexp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )
    assert done.returncode == 0, done.stderr
