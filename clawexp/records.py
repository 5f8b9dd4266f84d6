"""The frozen records that flow from room to room, and the small protocols that name what a record may hold.

Nothing here does work, and nothing here needs torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from clawexp.outcome import Outcome

Split = Literal["train", "eval"]
"""Of tasks; evaluation tasks are never trained on."""
LOGPROB_ROUNDING = 1e-4
"""An engine's logprob of a near certain token may lie so far above 0."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One program to run inside a sandbox."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment: nothing is inherited."""
    cwd: str | None = None
    """Path inside the sandbox; None is the workspace."""
    stdin: bytes = b""
    timeout_s: float = 60.0
    output_bytes: int = 1_000_000
    """Each stream keeps its last so many bytes."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a command ended."""

    code: int
    """Exit status; -N for signal N."""
    stdout: bytes
    stderr: bytes
    wall_s: float
    timed_out: bool = False


class Heard(Protocol):
    """Told of a command's output as it comes."""

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes, /) -> object: ...


class Sandbox(Protocol):
    """A live place that holds one rollout's workspace. Removed when its context ends."""

    id: str
    workspace: str
    """The task's folder, as programs inside see it."""
    home: str
    """A folder for the harness's own files, as programs inside see it."""
    python: str
    """A Python 3 interpreter, as programs inside see it."""
    facts: Mapping[str, Any]
    """What really holds: isolation, limits, start time in ms."""

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        """Run a program to its end or its timeout. Then nothing that it started runs any more.

        One at a time: a second one waits.
        """
        ...

    async def stop(self) -> None:
        """End whatever is alive in it, the runtime's own programs too. What runs next does so as in a new sandbox that
        has these files: nothing that ran before can reach it."""
        ...

    async def snapshot(self) -> str:
        """Stop, and keep all its files, for `reset` alone; a name for them."""
        ...

    async def reset(self, to: str | None = None) -> None:
        """Stop, and bring its files back to what they were at a snapshot; None: to what they were at the beginning."""
        ...

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files. A relative path is under the workspace, `~/x` under home, an absolute one under one of the
        task's `folders`; parents are made."""
        ...

    async def get(self, path: str) -> bytes:
        """The bytes of one file (paths as in `put`). Raises FileNotFoundError."""
        ...

    async def files(self) -> dict[str, int]:
        """Size in bytes of every regular file under the workspace, by relative path."""
        ...


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a grader found. `Verdict(score=0.5, checks={"exists": 1.0, "exact": 0.0})`"""

    score: float
    """In [0, 1]."""
    checks: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


class Grader(Protocol):
    """Looks at what a harness left. Runs after the harness is gone."""

    async def grade(self, sandbox: Sandbox) -> Verdict: ...


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a task's sandbox is built from, where the runtime builds images. `Image(context=Path("t1/environment"))`"""

    context: Path
    """Folder of the host that holds a `Dockerfile`, and the files that it copies."""
    required: bool
    """False: `Task.files` and `Task.workspace` say the same, so a runtime without images can hold the task too."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to do. `Task(id="lookup-17", instruction="Write ... to out.txt", files={"a.conf": b"x = 4"}, ...)`"""

    id: str
    instruction: str
    files: Mapping[str, bytes]
    """Relative path -> content, laid in the workspace before the harness starts."""
    grader: Grader
    split: Split
    tags: tuple[str, ...] = ()
    oracle: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """A known solution as tool calls, `(("read", {"path": "a.conf"}), ("write", {...}))`; empty where none is known."""
    workspace: str | None = None
    """Absolute path of the workspace inside the sandbox, where the task's programs name it; None: the runtime's own."""
    folders: tuple[str, ...] = ()
    """Further folders that its programs name by absolute path: empty and writable at the start. `("/tests",)`"""
    image: Image | None = None
    """None: whatever the runtime starts with."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """All that a harness is told of the model behind the proxy."""

    url: str
    """Base URL without a path, as seen inside the sandbox: `http://127.0.0.1:8080`."""
    socket: str | None
    """Path of the proxy's unix socket inside the sandbox, for harnesses that can dial it; None where there is none."""
    key: str
    """This rollout's credential. A secret: it goes into environments and files, never into argv."""
    model: str
    context: int
    """Tokens that prompt and answer may take together."""
    max_tokens: int
    """Tokens that one answer may take."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a harness is started for one rollout."""

    command: Command
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Laid down before the start, as in `Sandbox.put`."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a harness asks of a sandbox."""

    mounts: Mapping[str, str] = field(default_factory=dict)
    """Host folder -> the same folder inside, read-only."""
    dials_socket: bool = False
    """True: the harness dials the proxy's unix socket itself, so no forwarder is started."""
    memory_mb: int = 64
    python: str | None = None
    """The minor version of Python, `3.11`, that its packages are for; None: it brings what it needs, or takes any."""
    trusted: bool = False
    """True only for the project's own harness; others are refused where the runtime is no isolation."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The run and rollout that a sandbox belongs to, and where they live on the host."""

    run_id: str
    rollout_id: str
    root: Path
    """Folder under which all sandboxes of the run lie."""
    proxy_socket: Path | None
    """The capture proxy's unix socket."""
    proxy_port: int
    """Its TCP port on loopback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where one rollout comes to the model boundary, on the host."""

    socket: Path
    """A unix socket that speaks plain HTTP."""
    port: int
    """On 127.0.0.1; the same."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What an engine says of given ids."""

    logprobs: tuple[float, ...]
    """Of each but the first, given those before it, at temperature 1."""
    experts: NDArray[np.int16] | None = field(default=None, compare=False, repr=False)
    """That each but the last was sent to, [ids - 1, layers, k]; None as in `CallRecord`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Sampled ids `[start, end)` of one call were drawn from weights of this version."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change that capture made to a request. `Edit(rule="sampling.temperature", before=0.2, after=1.0)`"""

    rule: str
    before: Any
    after: Any


Cause = Literal["root", "continue", "template", "reminder", "compaction", "subagent", "retry", "rewrite", "tool_schema"]
ParseVerdict = Literal["text", "tool_calls", "malformed", "cut"]


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """One model call but for its prompt, which stands in the journal as (parent, shared, new ids)."""

    rollout_id: str
    call_id: str
    position: int
    """0 for the rollout's first call; in order of arrival."""
    dialect: str
    kind: Literal["main", "auxiliary"]
    cause: Cause
    """`continue` when the prompt begins with an earlier call's prompt and answer; `root` for the first call of the main
    conversation; otherwise why it does not."""
    parent: str | None
    """The earlier call that shares the longest beginning."""
    shared: int
    """So many ids of this prompt are the parent's prompt and answer, from the start."""
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each sampled id under the sampling distribution; same length, never padded."""
    spans: tuple[Span, ...]
    """Cover the sampled ids, in order."""
    finish_reason: Literal["stop", "length", "abort"]
    verdict: ParseVerdict
    requested: Mapping[str, Any]
    """Sampling as the harness asked."""
    submitted: Mapping[str, Any]
    """Sampling as the engine was asked."""
    edits: tuple[Edit, ...] = ()
    rewritten: bool = False
    """A rule of the experiment told the harness something else than was sampled: the call is never trained."""
    started: float = 0.0
    """Seconds since the epoch."""
    finished: float = 0.0
    engine_s: float = 0.0
    experts: NDArray[np.int16] | None = field(default=None, compare=False, repr=False)
    """Which experts the engine sent each token to, [n, layers, k], of the last n tokens of prompt and answer but for
    the very last, which was sampled and never computed. Those before them are in earlier calls. None of a dense model,
    or where the engine does not tell."""


@dataclass(frozen=True, kw_only=True)
class Call(CallRecord):
    """One model call, exact to the token.

    With a parent of prompt (1, 2) and sampled (3, 9), `shared=4`, prompt_ids `(1, 2, 3, 9, 5, 6)` continues it.
    """

    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One attempt at one task by one harness."""

    id: str
    task_id: str
    harness: str
    step: int
    """The step whose batch it was gathered for."""
    number: int
    """Its place in its group, from 0."""
    seed: int
    outcome: Outcome
    reward: float | None
    """None where there is no verdict."""
    calls: tuple[Call, ...] = ()
    verdict: Verdict | None = None
    reason: str = ""
    """Why it ended so, for a person; the tail of stderr where a program failed."""
    retried: tuple[Outcome, ...] = ()
    """How the attempts ended that it was made again after."""
    times: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage: sandbox, harness, settle, grade, remove."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The sandbox's facts, and the harness's own counts where it prints any."""

    @property
    def group(self) -> tuple[str, str]:
        """Rollouts of one task under one harness share a baseline."""
        return (self.task_id, self.harness)
