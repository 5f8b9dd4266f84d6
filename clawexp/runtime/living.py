"""A sandbox: a folder of the host, and the lives in which programs see it, one after another."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from clawexp.records import Command, Finished, Heard
from clawexp.runtime.cgroup import Group
from clawexp.runtime.disk import DiskBound
from clawexp.runtime.folder import Folder
from clawexp.runtime.folder_sandbox import FolderSandbox
from clawexp.runtime.life import Life

Begin = Callable[[], AbstractAsyncContextManager[Life]]


class LivingSandbox(FolderSandbox):
    """A life begins with the first command, and the next one after it has ended, however it did."""

    @property
    def outlasts_stop(self) -> bool:
        """Whether nothing but its folder can be changed in it, so that a life that is as it began need not end."""
        return False

    def __init__(
        self,
        folder: Folder,
        files: Mapping[str, bytes],
        workspace: str,
        life: Begin,
        disk: DiskBound,
        group: Group,
        agent: int | None = None,
    ) -> None:
        """`agent`: the host's id of the user inside, where it is not the driver's own."""
        super().__init__(folder, files)
        self.workspace = workspace
        self._begin_life = life
        self._disk = disk
        self._group = group
        self._agent = agent
        self._turn = asyncio.Lock()
        self._life: Life | None = None
        self._held = contextlib.AsyncExitStack()

    async def ready(self) -> None:
        """Begin the life that the next command will run in, unless it was."""
        async with self._turn:
            await self._living()

    async def run(self, command: Command, heard: Heard | None = None) -> Finished:
        async with self._turn:
            life = await self._living()
            work = life.run(command, command.argv, command.cwd or self.workspace, heard, self._agent)
            try:
                return await self._disk.keep(self._group.folders, work)
            finally:
                if life.over:
                    await self._end()

    async def stop(self) -> None:
        async with self._turn:
            if self._life is None or not (self.outlasts_stop and await self._life.is_as_begun()):
                await self._end()

    async def end(self) -> None:
        """End the life, whatever became of it."""
        async with self._turn:
            await self._end()

    async def _living(self) -> Life:
        if self._life is None:
            self._life = await self._held.enter_async_context(self._begin_life())
        return self._life

    async def _end(self) -> None:
        self._life = None
        await self._held.aclose()
