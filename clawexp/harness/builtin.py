"""The project's own harness, described: one program beside this file, and its settings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from clawexp.component import component
from clawexp.harness import builtin_program
from clawexp.outcome import Outcome
from clawexp.protocols import WayIn
from clawexp.records import Command, Finished, Launch, Link, Needs, Sandbox, Task
from clawexp.spec import Positive, Seconds, Share

SOURCE = Path(builtin_program.__file__).read_bytes()
PROGRAM = ".clawexp.py"
CONFIG = ".clawexp.json"
Tool = Literal["read", "write", "edit", "ls", "exec", "spawn"]


@component
class Builtin:
    """A small tool-using loop that starts in some 30 ms. Compaction and the like can be switched."""

    num_tasks: Positive
    group_size: Positive
    eval_tasks: Annotated[int, Field(ge=0)]
    weight: Annotated[float, Field(gt=0)] | None
    min_context: Positive
    way_in: WayIn
    timeout_s: Seconds
    memory_mb: Positive
    system: str
    tools: tuple[Tool, ...]
    """Offered in this order. With `exec` among them the harness counts as untrusted."""
    max_turns: Positive
    """Model calls of one conversation; a helper has as many for itself."""
    stream: bool
    compaction: bool
    """When the context fills, go on from a summary that the model writes."""
    compact_at: Share
    """Share of the context that counts as full."""
    compact_system: str
    retry_malformed: bool
    """Answer a broken tool call with an error instead of ending."""
    subagent_system: str
    output_chars: Positive
    """Characters of a tool's result that the model sees."""
    exec_s: Seconds
    """Seconds that one shell command may take."""

    def needs(self) -> Needs:
        """Only `exec` lets the model do more than change files of its workspace."""
        direct = self.way_in == "base_url"
        return Needs(dials_socket=direct, memory_mb=self.memory_mb, trusted="exec" not in self.tools)

    def prepared(self) -> str | None:
        """It comes with the project."""
        return None

    def prepare(self) -> None:
        """Nothing to fetch."""

    def launch(self, task: Task, link: Link, sandbox: Sandbox) -> Launch:
        """The program and its settings, the key among them, are files in home."""
        settings = {
            **{name: getattr(self, name) for name in SETTINGS},
            "url": link.url,
            "socket": link.socket,
            "key": link.key,
            "model": link.model,
            "context": link.context,
            "max_tokens": link.max_tokens,
            "workspace": sandbox.workspace,
            "task": task.instruction,
        }
        command = Command(
            argv=(sandbox.python, "-I", "-S", f"{sandbox.home}/{PROGRAM}", f"{sandbox.home}/{CONFIG}"),
            env={"HOME": sandbox.home, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            timeout_s=self.timeout_s,
        )
        return Launch(command=command, files={f"~/{PROGRAM}": SOURCE, f"~/{CONFIG}": json.dumps(settings).encode()})

    @property
    def dialect(self) -> str:
        return "openai_chat"

    def outcome(self, finished: Finished) -> Outcome | None:
        """By the reason that it prints beside its counts."""
        return ENDED.get(str(_report(finished).get("ended")))

    def counts(self, finished: Finished) -> Mapping[str, float]:
        return {
            name: float(value)
            for name, value in _report(finished).items()
            if name != "ended" and isinstance(value, int | float)
        }


def _report(finished: Finished) -> dict[str, Any]:
    """The last line that it printed; empty where it was killed or failed before that.

    What the model runs may write there, too, so the line can be anything.
    """
    lines = finished.stdout.splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


ENDED = {
    "turns": Outcome.TRUNCATED,
    "context": Outcome.TRUNCATED,
    "malformed": Outcome.PARSE_FAULT,
    "empty": Outcome.POLICY_FAULT,
}
SETTINGS = (
    *("system", "tools", "max_turns", "stream", "compaction", "compact_at", "compact_system"),
    *("retry_malformed", "subagent_system", "output_chars", "exec_s"),
)
