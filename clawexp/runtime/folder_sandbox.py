"""The half of a sandbox that lies in a folder of the host: what is put there, got from there, kept and brought back."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping

from clawexp.runtime.folder import Folder
from clawexp.runtime.snapshot import bring_back, empty, keep


class FolderSandbox(ABC):
    """Whoever derives from it runs programs that see the folder."""

    def __init__(self, folder: Folder, files: Mapping[str, bytes]) -> None:
        """`files`: the task's, there at the beginning."""
        self.folder = folder
        self.id = folder.path.name
        self._files = files

    @abstractmethod
    async def stop(self) -> None: ...

    async def put(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            self.folder.put(path, content)

    async def get(self, path: str) -> bytes:
        return self.folder.get(path)

    async def files(self) -> dict[str, int]:
        return self.folder.files()

    async def renew(self) -> None:
        """Leave nothing of what was done in it, and no task."""
        self._files = {}
        await self.reset()

    async def begin_with(self, rollout_id: str, files: Mapping[str, bytes]) -> None:
        """Take the place of a sandbox that was made for this rollout."""
        self.id, self._files = rollout_id, files
        await self.begin()

    async def begin(self) -> None:
        """Lay into empty places what is there at the beginning."""
        await self.put(self._files)

    async def snapshot(self) -> str:
        await self.stop()
        return await asyncio.to_thread(keep, self.folder)

    async def reset(self, to: str | None = None) -> None:
        await self.stop()
        await asyncio.to_thread(empty, self.folder)
        if to is None:
            await self.begin()
        else:
            await asyncio.to_thread(bring_back, self.folder, to)
