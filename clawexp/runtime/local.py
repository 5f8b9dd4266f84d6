"""A plain subprocess in a folder of its own. This is not isolation."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from clawexp.component import component
from clawexp.errors import RuntimeFault
from clawexp.protocols import Placed
from clawexp.records import Command, Finished, Heard, Needs, Owner, Sandbox, Task
from clawexp.runtime import leash
from clawexp.runtime.folder import Folder, create
from clawexp.runtime.folder_sandbox import FolderSandbox
from clawexp.runtime.label import new_label, write_label
from clawexp.runtime.process import supervise
from clawexp.scratch import remove
from clawexp.spec import Positive

INTERPRETER = Path(sys.executable).resolve()


class LocalSandbox(FolderSandbox):
    """A folder, and programs of this machine that start in it."""

    python = str(INTERPRETER)

    def __init__(self, folder: Folder, files: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
        super().__init__(folder, files)
        self.workspace = str(folder.workspace)
        self.home = str(folder.home)
        self.facts = facts

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        argv = (str(INTERPRETER), "-I", "-S", leash.__file__, str(os.getpid()), *command.argv)
        return await supervise(argv, command, cwd=command.cwd or self.workspace, heard=heard)

    async def stop(self) -> None:
        """Nothing outlives its command but what left the command's process group, and nobody can find that."""


@component
class Local:
    """Programs run as this user, with this machine's files and network."""

    file_bytes: Positive
    """Larger files are not read back."""
    allow_unsafe: bool
    """Let harnesses that are not the project's own run without isolation."""

    def refuses(self, place: Placed) -> str | None:
        """A plain folder lies where it lies."""
        if place.image is not None and place.image.required:
            return (
                f"task {place.id} needs an image of its own, and runtime=local builds none; "
                "use runtime=podman, or leave the task out"
            )
        fixed = [path for path in (place.workspace, *place.folders) if path]
        if fixed:
            paths = ", ".join(fixed)
            return f"task {place.id} needs {paths}, which runtime=local cannot give it; use runtime=bubblewrap"
        return None

    def distrusts(self, needs: Needs) -> str | None:
        """Whatever is not the project's own, unless the user accepts that."""
        if needs.trusted or self.allow_unsafe:
            return None
        return (
            "this harness is not the project's own, and runtime=local is no isolation: what its model "
            "says would run as you; use runtime=bubblewrap, or accept that with runtime.allow_unsafe=true"
        )

    @contextlib.asynccontextmanager
    async def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AsyncIterator[Sandbox]:
        reason = self.distrusts(needs) or self.refuses(task)
        if reason:
            raise RuntimeFault(reason)
        begun = time.monotonic()
        folder = create(owner, self.file_bytes)
        try:
            write_label(folder.path, new_label(owner.run_id, owner.rollout_id, "local"))
            facts: dict[str, Any] = {
                "runtime": "local",
                "isolation": "none",
                "network": "host",
                "proxy_socket": str(owner.proxy_socket) if owner.proxy_socket else None,
                "proxy_url": f"http://127.0.0.1:{owner.proxy_port}",
            }
            sandbox = LocalSandbox(folder, task.files, facts)
            await sandbox.begin()
            facts["start_ms"] = round(1000 * (time.monotonic() - begun), 1)
            yield sandbox
        finally:
            await asyncio.shield(asyncio.to_thread(remove, folder.path))
