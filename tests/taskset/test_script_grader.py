import pytest
from boxes import Boxed

from clawexp.errors import TasksetError
from clawexp.records import Command, Sandbox, Task, Verdict
from clawexp.taskset.script_grader import ScriptGrader

GRADER = "check/run.sh"


def grader(script: str, **fields) -> ScriptGrader:
    fields = {"clear": ("/w/check",), "cwd": "/", **fields}
    return ScriptGrader(argv=("bash", f"/w/{GRADER}"), files={GRADER: script.encode()}, **fields)


def task(script: str, **fields) -> Task:
    return Task(
        id="t",
        instruction="",
        files={"a.txt": b"0.25"},
        grader=grader(script, **fields),
        split="train",
        workspace="/w",
    )


async def shell(sandbox: Sandbox, script: str) -> None:
    done = await sandbox.run(Command(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}))
    assert done.code == 0, done.stderr


async def graded(boxed: Boxed, script: str, left: str = "", **fields) -> Verdict:
    """The verdict on what a harness left that did nothing but `left`."""
    each = task(script, **fields)
    async with boxed(each) as sandbox:
        assert GRADER not in await sandbox.files(), "the grader's files are not there while the harness works"
        await shell(sandbox, left)
        return await each.grader.grade(sandbox)


async def test_the_last_line_is_the_score(boxed: Boxed) -> None:
    assert (await graded(boxed, "echo working; cat /w/a.txt; echo; echo")).score == 0.25


async def test_checks_explain_the_score(boxed: Boxed) -> None:
    detail = ("echo", '{"exists": true, "right": 0.5}')
    verdict = await graded(boxed, "echo 0.75", detail=detail)
    assert (verdict.score, verdict.checks) == (0.75, {"exists": 1.0, "right": 0.5})
    assert verdict.reason == "fails right"
    assert (await graded(boxed, "echo 0.75", detail=("echo", "none"))).checks == {}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 1; exit 3", "ended with 3"),
        ("echo so >&2; kill -9 $$", "ended with -9: so"),
        ("true", "no number"),
        ("echo much", "'much', no number"),
        ("echo 1.5", r"not in \[0, 1\]"),
        ("echo nan", r"not in \[0, 1\]"),
    ],
)
async def test_without_a_score_there_is_no_verdict(boxed: Boxed, script: str, said: str) -> None:
    with pytest.raises(TasksetError, match=said):
        await graded(boxed, script)


@pytest.mark.parametrize(
    "left",
    [
        "mkdir check; echo 'raise SystemExit(7)' > check/json.py",
        "mkdir -p check/deep/er; touch check/deep/er/f; chmod 000 check/deep",
        "mkdir elsewhere; ln -s elsewhere check",
        "mkfifo check",
        "echo 'raise SystemExit(7)' > json.py",
        "mkdir -p $HOME/.local/lib; echo 'exit 7' > ~/.bashrc; echo 'exit 7' > ~/.profile",
        "mkdir -p check; ln -s /w/a.txt check/run.sh",
    ],
)
async def test_what_a_harness_plants_does_not_reach_the_script(boxed: Boxed, left: str) -> None:
    script = """python3 -c 'import json; print(json.loads("1"))'"""
    assert (await graded(boxed, f"cd /; {script}", left=f"export HOME=/home/agent; {left}")).score == 1


async def test_in_the_workspace_a_script_sees_what_lies_there(boxed: Boxed) -> None:
    assert (await graded(boxed, "cat a.txt", cwd=None, clear=())).score == 0.25
