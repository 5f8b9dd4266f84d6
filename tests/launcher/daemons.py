"""Server processes of a test: children in the foreground that die with the test and are all stopped at its end."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PR_SET_PDEATHSIG = 1
START_S = 600
"""For anything that only a hang would reach."""
GRACE_S = 5
POLL_S = 0.05


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemons:
    """Started one after the other, each logging to `folder/log`."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.log = folder / "log"
        self.log.mkdir()
        self.folder = folder
        self.environment = environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running.values()]

    def start(self, name: str, *argv: str) -> None:
        with (self.log / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                argv,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def until(self, what: str, happened: Callable[[], object]) -> None:
        """Wait for something that the daemons shall bring about. Fails where one of them ends, or all hang."""
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                if happened():
                    return
            ended = [name for name, process in self._running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"waiting for {what}; ended: {ended}\n{self._tails()}")
            time.sleep(POLL_S)

    def run(self, *argv: str) -> str:
        """A client, to its end; what it printed. Raises CalledProcessError."""
        with subprocess.Popen(
            argv,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        ) as client:
            try:
                stdout, stderr = client.communicate(timeout=START_S)
            finally:
                if client.returncode is None:  # with what it started
                    os.killpg(client.pid, signal.SIGKILL)
        if client.returncode:
            raise subprocess.CalledProcessError(client.returncode, argv, stdout, stderr)
        return stdout

    def stop(self) -> None:
        """The youngest first; one that will not go is killed."""
        for process in reversed(self._running.values()):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            process.kill()
            process.wait()

    def _tails(self) -> str:
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-2000:]}" for file in self.log.iterdir())


@contextmanager
def daemons(folder: Path, environment: dict[str, str]) -> Iterator[Daemons]:
    """None is left when the context ends."""
    started = Daemons(folder, environment)
    try:
        yield started
    finally:
        started.stop()


def marked(mark: str) -> list[int]:
    """Every process, but for this one and those that started it, that carries `mark` in its environment."""
    spared, pid = set(), os.getpid()
    while pid > 1:
        spared.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in spared:
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
