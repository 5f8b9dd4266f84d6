"""A task's own script decides: run in the task's sandbox, put there only now that the harness is gone.

What a harness left may be meant to mislead: a module beside the script that shadows a library, a file in place of one
of the script's. So the places of the script's files are cleared first, and the script starts with an environment and,
where its format allows, a folder in which the harness has nothing. A script that crashes gives no verdict, not a 0.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clawexp.errors import TasksetError
from clawexp.records import Command, Finished, Sandbox, Verdict

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    # The harness could have left modules for every Python that its user starts.
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
LONGEST_S = 86_400.0
"""The limit on grading (`rollout.grade_s`) ends a script earlier."""
CLEAR = """
for place; do
    chmod -R u+rwX "$place" 2>/dev/null
    if [ -d "$place" ] && [ ! -L "$place" ]; then find "$place" -mindepth 1 -delete; else rm -f "$place"; fi || exit 1
done
"""
SHORT = 100
TAIL = 600
"""Characters of a failed script's stderr in a message."""


@dataclass(frozen=True, kw_only=True)
class ScriptGrader:
    """The last line that the script prints is the score. `ScriptGrader(argv=("bash", "/w/reward/reward.sh"), ...)`"""

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    """Put in for it, as in `Sandbox.put`."""
    clear: tuple[str, ...]
    """Files, and folders whose content goes, before `files` are put in; absolute paths."""
    cwd: str | None
    """None: the workspace, where the harness may have left anything that the script does not expect."""
    detail: tuple[str, ...] = ()
    """A command that prints the checks behind the score, a JSON object of name -> number; empty where there is none."""
    env: Mapping[str, str] = field(default_factory=dict)

    async def grade(self, sandbox: Sandbox) -> Verdict:
        """Raises TasksetError where there is no score."""
        done = await run_script(sandbox, self.argv, self.files, self.clear, self.cwd, self.env)
        if done.code != 0:
            raise TasksetError(f"{named(self.argv)} ended with {done.code}: {tail(done)}")
        score = number(last_line(done), named(self.argv))
        if not self.detail:
            return Verdict(score=score)
        checks = read_checks(await sandbox.run(self._command(self.detail)))
        return Verdict(score=score, checks=checks, reason=failed(checks))

    def _command(self, argv: Sequence[str]) -> Command:
        return Command(argv=tuple(argv), cwd=self.cwd, env={**ENVIRONMENT, **self.env}, timeout_s=LONGEST_S)


async def run_script(
    sandbox: Sandbox,
    argv: Sequence[str],
    files: Mapping[str, bytes],
    clear: Sequence[str],
    cwd: str | None,
    env: Mapping[str, str],
    timeout_s: float = LONGEST_S,
) -> Finished:
    """Clear, put in, run. Raises TasksetError where it cannot be cleared or does not end."""
    cleared = await sandbox.run(Command(argv=("sh", "-c", CLEAR, "sh", *clear), env=ENVIRONMENT))
    if cleared.code != 0:
        raise TasksetError(f"{', '.join(clear)} could not be cleared for the grader: {tail(cleared)}")
    await sandbox.put(files)
    command = Command(argv=tuple(argv), cwd=cwd, env={**ENVIRONMENT, **env}, timeout_s=timeout_s)
    done = await sandbox.run(command)
    if done.timed_out:
        raise TasksetError(f"{named(argv)} did not end within {timeout_s:g} s: {tail(done)}")
    return done


def named(argv: Sequence[str]) -> str:
    """A command for a message."""
    return f"`{' '.join(argv)[:SHORT]}`"


def last_line(done: Finished) -> str:
    lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def number(text: str, source: str) -> float:
    """A score as text. Raises TasksetError where it is no number of [0, 1]."""
    try:
        value = float(text)
    except ValueError as error:
        raise TasksetError(f"{source} gave {text!r:.200}, no number") from error
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise TasksetError(f"{source} gave {value}, which is not in [0, 1]")
    return value


def read_checks(done: Finished) -> dict[str, float]:
    """Numbers by name from an output of JSON; empty where it is none, for they only explain the score."""
    try:
        found = json.loads(done.stdout)
        return {str(name): float(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def failed(checks: Mapping[str, float]) -> str:
    names = [name for name, value in checks.items() if value < 1]
    return f"fails {', '.join(names)}" if names else ""


def tail(done: Finished) -> str:
    said = (done.stderr or done.stdout).decode(errors="replace").strip()
    return said[-TAIL:] or "it said nothing"
