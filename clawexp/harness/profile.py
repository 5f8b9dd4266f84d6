"""A third-party harness as data: what to install, what to lay down, how to start it."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clawexp.component import component
from clawexp.errors import HarnessError
from clawexp.harness.package import Package, call, mark, scratch
from clawexp.outcome import Outcome
from clawexp.protocols import WayIn
from clawexp.records import Command, Finished, Launch, Link, Needs, Sandbox, Task
from clawexp.spec import Positive, Seconds

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
KNOWN = frozenset(("url", "key", "model", "context", "max_tokens", "workspace", "home", "task", "python"))
"""Besides what the package calls its own places."""


@component
class Profile:
    """Templates, filled for one rollout. Placeholders stand in braces; KNOWN lists them."""

    name: str
    """Of the option, for messages and the cache."""
    num_tasks: Positive
    group_size: Positive
    eval_tasks: Annotated[int, Field(ge=0)]
    weight: Annotated[float, Field(gt=0)] | None
    min_context: Positive
    dialect: str
    """What it speaks to the model: the name of one in `clawexp.capture.dialects`."""
    way_in: WayIn
    timeout_s: Seconds
    memory_mb: Positive
    package: Package
    """What is installed."""
    argv: tuple[str, ...]
    """Without `{key}`: other processes can read it."""
    stdin: str
    env: dict[str, str]
    files: dict[str, Any]
    """Path -> text, or a value that is written as JSON. A placeholder as a whole value keeps its type."""
    check: tuple[str, ...]
    """A command of the harness that reads its files; run once when it is prepared."""
    check_says: str
    """What that command says, besides ending with 0, if the harness accepts its files."""
    exit_outcomes: dict[int, Outcome]
    """What exit statuses mean, other than 0 for done."""
    stderr_outcomes: dict[str, Outcome]
    """Regular expression on stderr -> what an exit status other than 0 means there; the first that is found counts."""
    stdout_outcomes: dict[str, Outcome]
    """The same on stdout, whatever the exit status; looked at first."""
    count_patterns: dict[str, str]
    """Count -> regular expression on stdout: its group as a number, or without one how often it is found."""

    def __post_init__(self) -> None:
        """Refuse templates that would leak the key or hold a misspelt placeholder. Raises ValueError."""
        texts = [*self.argv, *self.check, self.stdin, *self.env.values(), *_texts(self.files)]
        known = KNOWN | self.package.places.keys()
        unknown = sorted({name for text in texts for name in PLACEHOLDER.findall(text)} - known)
        if unknown:
            raise ValueError(f"{self.name}: unknown placeholders {unknown}; there are {sorted(known)}")
        if any("{key}" in text for text in (*self.argv, *self.check)):
            raise ValueError(f"{self.name}: {{key}} in argv could be read by others; put it in env or files")

    def needs(self) -> Needs:
        root = str(self.package.root)
        return Needs(mounts={root: root}, memory_mb=self.memory_mb, python=self.package.python)

    def prepared(self) -> str | None:
        ready = self.package.root.is_dir() and self._accepted.exists()
        return None if ready else f"python -m clawexp prepare harness={self.name}"

    def prepare(self) -> None:
        """Install the package, then let the harness check the files that it will get."""
        self.package.install()
        if not self._accepted.exists():
            self._try_files()
            self._accepted.touch()

    @property
    def _accepted(self) -> Path:
        """A mark beside the package, one for each set of files that the harness has accepted."""
        return mark(self.package.root, [self.files, self.env, self.check, self.check_says])

    def _try_files(self) -> None:
        link = Link(url="http://127.0.0.1:9", socket=None, key="none", model="none", context=32768, max_tokens=1024)
        with scratch(self.package.root) as home:
            places = {"workspace": str(home), "home": str(home), "python": str(Path(sys.executable).resolve())}
            values = self._values(link, "Say hello.", places)
            for path, template in self.files.items():
                file = home / path.removeprefix("~/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(_content(template, values))
            argv = [_text(part, values) for part in self.check]
            env = {name: _text(value, values) for name, value in self.env.items()}
            said = call(argv, env)
            if _text(self.check_says, values) not in said:
                raise HarnessError(f"{self.name} does not accept its configuration; it says: {said.strip()}")

    def launch(self, task: Task, link: Link, sandbox: Sandbox) -> Launch:
        places = {"workspace": sandbox.workspace, "home": sandbox.home, "python": sandbox.python}
        values = self._values(link, task.instruction, places)
        command = Command(
            argv=tuple(_text(part, values) for part in self.argv),
            stdin=_text(self.stdin, values).encode(),
            env={name: _text(value, values) for name, value in self.env.items()},
            timeout_s=self.timeout_s,
        )
        files = {path: _content(template, values) for path, template in self.files.items()}
        return Launch(command=command, files=files)

    def _values(self, link: Link, task: str, places: Mapping[str, str]) -> dict[str, str | int]:
        return {
            "url": link.url,
            "key": link.key,
            "model": link.model,
            "context": link.context,
            "max_tokens": link.max_tokens,
            "task": task,
            **places,
            **self.package.places,
        }

    def outcome(self, finished: Finished) -> Outcome | None:
        said = _found(self.stdout_outcomes, finished.stdout)
        if said is None and finished.code != 0:
            said = _found(self.stderr_outcomes, finished.stderr)
        return said or self.exit_outcomes.get(finished.code)

    def counts(self, finished: Finished) -> Mapping[str, float]:
        text = finished.stdout.decode(errors="replace")
        return {name: self._count(name, pattern, text) for name, pattern in self.count_patterns.items()}

    def _count(self, name: str, pattern: str, text: str) -> float:
        """The number that a pattern's group matched first; without a group, how often it matched."""
        if not re.compile(pattern).groups:
            return float(len(re.findall(pattern, text)))
        found = re.search(pattern, text)
        try:
            return float(found[1]) if found else 0.0
        except ValueError as error:
            raise HarnessError(
                f"{self.name}: what counts {name} matched {found and found[1]!r}, which is no number; "
                f"correct count_patterns.{name}, {pattern!r}"
            ) from error


def _found(outcomes: Mapping[str, Outcome], said: bytes) -> Outcome | None:
    """What the first pattern means that is found in a program's output."""
    text = said.decode(errors="replace")
    return next((outcome for pattern, outcome in outcomes.items() if re.search(pattern, text)), None)


def _texts(value: Any) -> Iterator[str]:
    """Every string in a nested value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _text(template: str, values: Mapping[str, str | int]) -> str:
    """Fill in one pass: what a value holds is never looked at again."""
    return PLACEHOLDER.sub(lambda match: str(values[match[1]]), template)


def _filled(value: Any, values: Mapping[str, str | int]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(inner, values) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(inner, values) for inner in value]
    if isinstance(value, str):
        whole = PLACEHOLDER.fullmatch(value)
        return values[whole[1]] if whole else _text(value, values)
    return value


def _content(template: Any, values: Mapping[str, str | int]) -> bytes:
    if isinstance(template, str):
        return _text(template, values).encode()
    return json.dumps(_filled(template, values), indent=1).encode()
