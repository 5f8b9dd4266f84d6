"""Harbor's task directories -> tasks.

    FOLDER/NAME/task.toml                limits of time, where a task is held out: [metadata] split = "eval"
                instruction.md
                environment/Dockerfile   what the sandbox is made from; its WORKDIR is the workspace
                tests/test.sh            run as /tests/test.sh; writes /logs/verifier/reward.txt or reward.json
                solution/solve.sh        the oracle: one shell command

A Dockerfile of FROM, WORKDIR and COPY alone runs in any sandbox; another needs the image itself.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from clawexp.component import component
from clawexp.records import Image, Split, Task
from clawexp.spec import Share
from clawexp.taskset.dockerfile import Recipe, read_dockerfile
from clawexp.taskset.harbor_grader import LOGS, TESTS, HarborGrader
from clawexp.taskset.listing import Entry, ListedTaskset, Problem, task_folders
from clawexp.taskset.tree_files import Unlayable, read_tree, tree_files

FETCHES = re.compile(
    r"\b(apt(-get)?\s+(-\S+\s+)*(update|install)|apk\s+add|pip3?\s+install|uv\s+pip|npm\s+(i|install|ci)\b|git\s+clone"
    r"|(curl|wget)\s.*https?://(?!localhost|127\.))"
)
"""What a script does that brings its programs along; without a network its tests fail whatever the harness did."""


class Part(BaseModel):
    """A section of `task.toml`, as far as it is used."""


class Metadata(Part):
    split: Split | None = None
    category: str | None = None
    difficulty: str | None = None
    tags: list[str] = []


class Verifier(Part):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None


class Environment(Part):
    docker_image: str | None = None
    os: str = "linux"
    gpus: int | None = None
    workdir: str | None = None
    mcp_servers: list[Any] = []
    skills_dir: str | None = None
    env: dict[str, str] = {}


class TaskToml(Part):
    metadata: Metadata = Metadata()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    steps: list[Any] | None = None


@component
class Harbor(ListedTaskset):
    """Each task is graded by its own tests, inside its sandbox."""

    path: str
    """The folder that holds the tasks' folders; or `package:NAME` for one that ships with clawexp."""
    eval_share: Share
    """Share of the tasks that is held out, of those that do not say it themselves."""

    def entries(self, source: Path) -> Sequence[Entry | Problem]:
        return [each for folder in task_folders(source) for each in _read(folder)]


def _read(folder: Path) -> Iterator[Entry | Problem]:
    problems = [Problem(str(folder), what) for what in _missing(folder)]
    try:
        data = TaskToml.model_validate(tomllib.loads((folder / "task.toml").read_text()))
    except FileNotFoundError:
        yield Problem(str(folder), "has no task.toml; a task of Harbor has one")
        return
    except ValidationError as error:
        told = [(".".join(map(str, detail["loc"])), detail["msg"]) for detail in error.errors()]
        problems += [Problem(str(folder / "task.toml"), f"{place}: {what}") for place, what in told]
    except ValueError as error:
        problems.append(Problem(str(folder / "task.toml"), f"is no TOML: {error}"))
    else:
        problems += [Problem(str(folder / "task.toml"), what) for what in _unsupported(data)]
        if not problems:
            yield _Folder(folder, data, read_dockerfile(folder / "environment/Dockerfile")).entry()
    yield from problems


def _missing(folder: Path) -> Iterator[str]:
    """What the format wants beside `task.toml`, and what a sandbox without a network cannot give."""
    for name in ("instruction.md", "tests/test.sh"):
        if not (folder / name).is_file():
            yield f"has no {name}"
    if not (folder / "environment/Dockerfile").is_file():
        yield "has no environment/Dockerfile; write one, FROM the image that the task names where it names one"
    if list((folder / "environment").glob("docker-compose.y*ml")):
        yield "environment/docker-compose.yaml wants several containers; a task here has one"
    for part in ("environment", "tests"):
        try:
            tree_files(folder / part)
        except Unlayable as error:
            yield str(error)
    yield from _fetching(folder)


def _fetching(folder: Path) -> Iterator[str]:
    script = folder / "tests/test.sh"
    lines = script.read_text(errors="replace").splitlines() if script.is_file() else []
    for number, line in enumerate(lines, start=1):
        if FETCHES.search(line.partition("#")[0]):
            yield (
                f"tests/test.sh:{number} fetches from the network, `{line.strip()}`, and a sandbox has none: the tests "
                "would fail whatever was done; let environment/Dockerfile bring it"
            )


def _unsupported(data: TaskToml) -> Iterator[str]:
    environment, verifier = data.environment, data.verifier
    if data.steps:
        yield "steps: a task here has one step; make a folder for each"
    if environment.os.lower() != "linux":
        yield f"environment.os: {environment.os} is not offered, only linux"
    if environment.gpus:
        yield "environment.gpus: a sandbox has none"
    if environment.mcp_servers or environment.skills_dir:
        yield "environment.mcp_servers and skills_dir: they belong to the harness's own configuration here"
    if environment.env:
        yield "environment.env: let environment/Dockerfile set it, by ENV"
    if verifier.environment_mode == "separate" or verifier.environment is not None:
        yield "verifier.environment: tests run in the task's own sandbox here; bring what they need into its Dockerfile"
    if any("${" in value for value in verifier.env.values()):
        yield "verifier.env: values from this machine's environment are not passed into a sandbox; write them out"


@dataclass(frozen=True)
class _Folder:
    """A task's folder, found to be sound."""

    path: Path
    data: TaskToml
    recipe: Recipe

    def entry(self) -> Entry:
        return Entry(
            id=self.path.name,
            where=str(self.path),
            split=self.data.metadata.split,
            make=self.task,
            workspace=self.workspace,
            folders=(TESTS, LOGS),
            image=self.image,
        )

    @property
    def workspace(self) -> str | None:
        return self.data.environment.workdir or self.recipe.workdir

    @property
    def image(self) -> Image:
        moved = self.workspace != self.recipe.workdir
        return Image(context=self.path / "environment", required=moved or bool(self.recipe.beyond))

    def task(self, split: Split) -> Task:
        metadata, image = self.data.metadata, self.image
        kinds = (metadata.category, metadata.difficulty, *metadata.tags)
        laid = {} if image.required else {path: file.read_bytes() for path, file in self.recipe.files.items()}
        return Task(
            id=self.path.name,
            instruction=(self.path / "instruction.md").read_text().strip(),
            files=laid,
            grader=HarborGrader(
                files={f"{TESTS}/{name}": content for name, content in read_tree(self.path / "tests").items()},
                env=self.data.verifier.env,
                timeout_s=self.data.verifier.timeout_sec,
            ),
            split=split,
            tags=("harbor", *(kind for kind in kinds if kind)),
            oracle=self._oracle(),
            workspace=self.workspace,
            folders=(TESTS, LOGS),
            image=image,
        )

    def _oracle(self) -> tuple[tuple[str, dict[str, str]], ...]:
        """The solution as one shell command; none where it comes with files of its own."""
        solution = self.path / "solution"
        if [each.name for each in solution.glob("*")] != ["solve.sh"]:
            return ()
        return (("exec", {"command": f"bash -c {shlex.quote((solution / 'solve.sh').read_text())}"}),)
