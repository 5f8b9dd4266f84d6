"""Two sandboxes to grade in: one in memory, one over a real folder."""

import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from boxes import Boxed

from clawexp.records import Command, Finished, Heard, Needs, Owner, Sandbox, Task, Verdict
from clawexp.runtime.bubblewrap import Bubblewrap


class Memory:
    """A sandbox over a dict."""

    id = "memory"
    workspace = "/workspace"
    home = "/home"
    python = sys.executable
    facts: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def snapshot(self) -> str:
        raise NotImplementedError

    async def reset(self, to: str | None = None) -> None:
        raise NotImplementedError

    async def put(self, files: Mapping[str, bytes]) -> None:
        self.content |= files

    async def get(self, path: str) -> bytes:
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    async def files(self) -> dict[str, int]:
        return {path: len(content) for path, content in self.content.items()}


class Folder(Memory):
    """A sandbox over a real folder."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    async def put(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(content)

    async def get(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    async def files(self) -> dict[str, int]:
        found = [path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]
        return {str(path.relative_to(self.root)): path.stat().st_size for path in found}


class Bench:
    """Plays tool calls on a task's files and grades what they leave."""

    async def play(self, task: Task, calls: Any, sandbox: Memory | None = None) -> Verdict:
        sandbox = sandbox or Memory()
        await sandbox.put(task.files)
        for name, arguments in calls:
            if name == "write":
                await sandbox.put({arguments["path"]: arguments["content"].encode()})
            else:
                assert name == "read"
        return await task.grader.grade(sandbox)

    def folder(self, root: Path) -> Folder:
        return Folder(root)

    def memory(self, **content: bytes) -> Memory:
        sandbox = Memory()
        sandbox.content |= {path.replace("_", "."): data for path, data in content.items()}
        return sandbox


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def boxed(tmp_path: Path) -> Boxed:
    """A real sandbox for a task."""

    def make(task: Task) -> AbstractAsyncContextManager[Sandbox]:
        owner = Owner(run_id="run", rollout_id="r", root=tmp_path / "boxes", proxy_socket=None, proxy_port=9)
        return Bubblewrap(
            file_bytes=100_000, memory_mb=4000, cpus=2.0, pids=1000, disk_mb=4000, require_limits=False
        ).sandbox(task, Needs(), owner)

    return make
