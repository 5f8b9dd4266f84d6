"""Images that tasks bring themselves: which are needed, by which name, and what a built one is.

CACHE/podman/from-<digest>/                 an image store: what a registry has, or an archive
             task-<digest>/storage/         an image store, on top of the stores of what it starts from
                           workspace.tar    what the image holds where the workspace will be
                           image.json       the rest of `TaskImage`

The digest is of the Dockerfile, of all that lies beside it, of the workspace's place and of what FROM stands for: tasks
that agree in these share an image, and one that is there is not built again.
"""

import dataclasses
import hashlib
import json
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed
from clawexp.runtime import image
from clawexp.runtime.ids import ids

PYTHON = "/usr/bin/python3"
PYTHON_VERSION = "3.11"
"""Both of the base image."""
WORKSPACE = "/work"
"""Where nothing else is said."""
OWN_BASE = "package:base"
PERMISSIONS = 0o777


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An image that tasks need. `Wanted(tasks=("a", "b"), contexts=(Path("a/environment"), ...), ...)`"""

    tasks: tuple[str, ...]
    contexts: tuple[Path, ...]
    """Theirs, all with the same content."""
    workspace: str | None
    """None: where the image's own WORKDIR is."""
    digest: str

    @property
    def context(self) -> Path:
        """The one that is built from."""
        return self.contexts[0]

    @property
    def dockerfile(self) -> Path:
        return self.context / "Dockerfile"

    def named(self) -> str:
        """`task a`, `tasks a and 3 more`"""
        first, *more = self.tasks
        return f"tasks {first} and {len(more)} more" if more else f"task {first}"

    def store(self, base: str | None) -> Path:
        """Where it lies, there or not, when FROM stands for `base`; None: for what it says."""
        stands = image.store().name if base == image.NAME else base or ""
        return image.cache() / f"task-{hashlib.sha256(f'{self.digest} {stands}'.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, kw_only=True)
class TaskImage:
    """A built one."""

    store: Path
    name: str
    """`localhost/clawexp/task-0123456789ab:latest`"""
    base: str
    """What its FROM stands for."""
    below: Sequence[str]
    """The stores, beside this one, of what it starts from."""
    workspace: str
    python: str
    """Its Python 3, as programs inside see it."""
    env: Mapping[str, str]
    """What its ENV lines say, and those of what it starts from."""

    @property
    def is_read_only(self) -> bool:
        """Nobody inside writes to it. What a task's Dockerfile left writable for its user is the task's own."""
        return self.name == image.NAME

    @property
    def packed(self) -> Path:
        """A tar of what it holds in the workspace; the base image has none."""
        return self.store / "workspace.tar"

    @property
    def stores(self) -> list[Path]:
        """All that a podman has to read to run it."""
        return [self.store / "storage", *(self.store.parent / name for name in self.below)]

    def unpack(self, workspace: Path) -> None:
        """Lay what the image holds in the workspace into a folder of the host, all of it the agent's."""
        agent = ids().agent

        def laid(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo | None:
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                return None
            mode = member.mode & PERMISSIONS
            return member.replace(mode=mode, uid=agent, gid=agent, uname="", gname="", deep=False)

        if self.packed.exists():
            with tarfile.open(self.packed) as tar:
                tar.extractall(workspace, filter=laid)

    def programs_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """A command's environment on top of the image's own; the image's programs are found first."""
        words = [word for source in (self.env, env) for word in source.get("PATH", "").split(":") if word]
        path = {"PATH": ":".join(dict.fromkeys(words))} if words else {}
        return {**self.env, **env, **path}


def base_image(workspace: str) -> TaskImage:
    """The project's own, for tasks that need no other."""
    store = image.store()
    return TaskImage(
        store=store, name=image.NAME, base=store.name, below=(), workspace=workspace, python=PYTHON, env={}
    )


def wanted(places: Sequence[Placed]) -> list[Wanted]:
    """One for all tasks that can share it. Raises RuntimeFault where a context cannot be read."""
    sharing: dict[str, list[Placed]] = {}
    for place in places:
        if place.image is not None and place.image.required:
            sharing.setdefault(context_digest(place.image.context, place.workspace or ""), []).append(place)
    return [
        Wanted(
            tasks=tuple(place.id for place in group),
            contexts=tuple(place.image.context for place in group if place.image),
            workspace=group[0].workspace,
            digest=digest,
        )
        for digest, group in sharing.items()
    ]


def context_digest(context: Path, workspace: str) -> str:
    """Of a folder's names, permissions, links and content, and of one word more. Raises RuntimeFault."""
    found = hashlib.sha256(f"{workspace}\0".encode())
    try:
        for path in sorted(context.rglob("*")):
            mode = path.lstat().st_mode
            found.update(f"{path.relative_to(context)}\0{stat.filemode(mode)}\0".encode())
            if path.is_symlink():
                found.update(str(path.readlink()).encode())
            elif path.is_file():
                found.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:
        raise RuntimeFault(f"{context}, from which an image is built, cannot be read: {error}") from error
    return found.hexdigest()


def possible_bases(key: str | None) -> tuple[str | None, ...]:
    """What FROM may stand for, best first; None: for what it says."""
    if key is None:
        return (None, image.NAME)
    return (image.NAME,) if key == OWN_BASE else (key,)


def built(need: Wanted, key: str | None) -> TaskImage | None:
    """None where it is not there."""
    found = (image_at(need.store(base)) for base in possible_bases(key))
    return next((each for each in found if each), None)


def image_at(store: Path) -> TaskImage | None:
    """None where there is none, or not all that it stands on."""
    if not store.is_dir():
        return None
    found = TaskImage(store=store, **json.loads((store / "image.json").read_text()))
    return found if all(path.is_dir() for path in found.stores) else None


def keep(made: TaskImage, folder: Path) -> None:
    """Move a finished image from `folder` to its place, whole or not at all."""
    told = dataclasses.asdict(made)
    del told["store"]
    (folder / "image.json").write_text(json.dumps(told, indent=1))
    move(folder, made.store)


def move(folder: Path, place: Path) -> None:
    """Put a folder where none is; where one is, whoever was faster has made the same."""
    try:
        folder.rename(place)
    except OSError:
        if not place.is_dir():
            raise
