"""Harbor's verdict: `/tests/test.sh` writes a number to `/logs/verifier/reward.txt`, or numbers to `reward.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from clawexp.errors import TasksetError
from clawexp.records import Sandbox, Verdict
from clawexp.taskset.script_grader import failed, number, run_script, tail

TESTS, LOGS = "/tests", "/logs/verifier"
MAIN = "reward"
"""The number that counts, where the tests write several."""


@dataclass(frozen=True, kw_only=True)
class HarborGrader:
    """Runs the tests in the workspace, as Harbor does, so they meet what the harness left there."""

    files: Mapping[str, bytes]
    """The tests, by absolute path."""
    env: Mapping[str, str]
    timeout_s: float

    async def grade(self, sandbox: Sandbox) -> Verdict:
        """Raises TasksetError where the tests wrote no reward: whatever a file held before them is gone."""
        argv = ("bash", f"{TESTS}/test.sh")
        done = await run_script(sandbox, argv, self.files, (TESTS, LOGS), None, self.env, self.timeout_s)
        for name, read in (("reward.json", _numbers), ("reward.txt", _number)):
            try:
                return read((await sandbox.get(f"{LOGS}/{name}")).decode(errors="replace"), f"{LOGS}/{name}")
            except FileNotFoundError:
                continue
        raise TasksetError(f"{TESTS}/test.sh wrote no reward to {LOGS}; it ended with {done.code}: {tail(done)}")


def _number(text: str, source: str) -> Verdict:
    return Verdict(score=number(text.strip(), source))


def _numbers(text: str, source: str) -> Verdict:
    """The number called `reward`, else the mean of all."""
    try:
        found: Any = json.loads(text)
        named = found if isinstance(found, dict) else {MAIN: found}
        checks = {str(name): float(value) for name, value in named.items()}
        score = checks[MAIN] if MAIN in checks else fmean(checks.values())
    except (ValueError, TypeError, RecursionError) as error:
        raise TasksetError(f"{source} holds {text!r:.200}, no numbers: {error}") from error
    return Verdict(score=number(str(score), source), checks=checks, reason=failed(checks))
