import pytest
from boxes import Boxed

from clawexp.errors import TasksetError
from clawexp.records import Command, Task, Verdict
from clawexp.taskset.harbor_grader import LOGS, TESTS, HarborGrader


async def graded(boxed: Boxed, script: str, left: str = "", timeout_s: float = 60) -> Verdict:
    """The verdict of tests on what a harness left that did nothing but `left`."""
    files = {f"{TESTS}/test.sh": script.encode(), f"{TESTS}/lib/expected.txt": b"5"}
    grader = HarborGrader(files=files, env={"WORD": "yes", "REWARD": f"{LOGS}/reward.txt"}, timeout_s=timeout_s)
    task = Task(id="t", instruction="", files={}, grader=grader, split="train", workspace="/app", folders=(TESTS, LOGS))
    async with boxed(task) as sandbox:
        await sandbox.run(Command(argv=("sh", "-c", left), env={"PATH": "/usr/bin:/bin"}))
        return await grader.grade(sandbox)


@pytest.mark.parametrize(
    ("script", "score", "checks"),
    [
        ("echo 0.5 > /logs/verifier/reward.txt; exit 1", 0.5, {}),
        ("""echo '{"a": 1, "b": 0}' > /logs/verifier/reward.json""", 0.5, {"a": 1, "b": 0}),
        ("""echo '{"a": 1, "reward": 0}' > /logs/verifier/reward.json""", 0, {"a": 1, "reward": 0}),
        ("echo 1 > /logs/verifier/reward.json; echo 0 > /logs/verifier/reward.txt", 1, {"reward": 1}),
        ('[ "$WORD $(pwd) $(cat /tests/lib/expected.txt)" = "yes /app 5" ] && echo 1 > $REWARD', 1, {}),
    ],
)
async def test_the_reward_that_the_tests_write_is_the_score(
    boxed: Boxed, script: str, score: float, checks: dict[str, float]
) -> None:
    verdict = await graded(boxed, script)
    assert (verdict.score, verdict.checks) == (score, checks)


async def test_a_reward_that_the_harness_wrote_itself_counts_for_nothing(boxed: Boxed) -> None:
    left = "echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json; echo 'exit 0' > /tests/lib"
    assert (await graded(boxed, "cat /tests/lib/expected.txt && echo 0 > /logs/verifier/reward.txt", left)).score == 0
    with pytest.raises(TasksetError, match="wrote no reward"):
        await graded(boxed, "true", left)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo so >&2; exit 4", "wrote no reward to /logs/verifier; it ended with 4: so"),
        ("touch /logs/verifier/reward.txt", "no number"),
        ("echo 7 > /logs/verifier/reward.txt", r"not in \[0, 1\]"),
        ("echo '{}' > /logs/verifier/reward.json", "no numbers"),
        ("""echo '{"a": "x"}' > /logs/verifier/reward.json""", "no numbers"),
    ],
)
async def test_without_a_reward_there_is_no_verdict(boxed: Boxed, script: str, said: str) -> None:
    with pytest.raises(TasksetError, match=said):
        await graded(boxed, script)


async def test_tests_that_do_not_end_are_no_verdict(boxed: Boxed) -> None:
    with pytest.raises(TasksetError, match="did not end within 2 s"):
        await graded(boxed, "sleep 600", timeout_s=2)
