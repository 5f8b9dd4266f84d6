"""vLLM's server, started in its own environment, watched, and ended with whatever it started.

As a program, `python -m clawexp.engine.vllm_server`, it stands between the driver and vLLM: it says when vLLM serves,
ends when vLLM ends, and ends vLLM when the driver ends, however that ends.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from clawexp.child import end_with_parent, read_settings, say_ready

HOST = "127.0.0.1"
POLL_S = 0.2
ERROR = re.compile(r" ERROR \S+ \S+ \[\S+\] +([\w.]+(?:Error|Exception): .*)")
"""The end of a traceback in vLLM's log."""
STOP_S = 2.0
"""Below the patience of the driver, which then kills."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the parent gives."""

    python: str
    """Interpreter of an environment with vLLM."""
    arguments: Sequence[str]
    """Of vLLM's server, but for host and port."""
    environment: Mapping[str, str]
    """Beside this process's own."""
    key: str
    log: str
    """Where this process's stderr goes."""
    scratch: str
    """Folder for its sockets: a short path. Removed in the end, whether or not the parent still can."""


def main() -> None:
    settings = Settings(**read_settings(signal.SIGTERM))
    signal.signal(signal.SIGTERM, _stop)
    before = Path(settings.log).stat().st_size
    port = _free_port()
    with _running(settings, port) as vllm:
        while not _serves(port, settings.key):
            if vllm.poll() is not None:
                break
            time.sleep(POLL_S)
        else:
            say_ready({"port": port})
        status = vllm.wait()
    sys.exit(f"vLLM ended with status {status}{_first_error(Path(settings.log), before)}")


def _stop(number: int, frame: FrameType | None) -> None:
    # A driver of several threads dies thread by thread, and each death may signal: only the first may end the wait.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


def _first_error(log: Path, before: int) -> str:
    """What went wrong first: several processes tell of it in turn, and the last knows the least."""
    found = ERROR.search(log.read_bytes()[before:].decode(errors="replace"))
    return f"; its first error: {found[1]}" if found else ""


@contextlib.contextmanager
def _running(settings: Settings, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """vLLM in this process's group, of which only this process is left after the context."""
    process = subprocess.Popen(
        [
            settings.python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            f"--host={HOST}",
            f"--port={port}",
            *settings.arguments,
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env={**os.environ, **settings.environment, **_own_environment(settings)},
        preexec_fn=end_with_parent,
    )
    try:
        yield process
    finally:
        _end(process)
        shutil.rmtree(settings.scratch, ignore_errors=True)


def _own_environment(settings: Settings) -> dict[str, str]:
    return {
        "PATH": f"{Path(settings.python).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parent / "inside_vllm"),
        "TMPDIR": settings.scratch,
        "VLLM_API_KEY": settings.key,
        "VLLM_SERVER_DEV_MODE": "1",  # pausing and loading are developer's routes to vLLM
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _serves(port: int, key: str) -> bool:
    request = urllib.request.Request(f"http://{HOST}:{port}/health", headers={"Authorization": f"Bearer {key}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=10):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask all others of the group to stop, then make them."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    for pid in _others():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _others() -> list[int]:
    """What else runs in this process's group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(entry.name)) == os.getpgrp():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


if __name__ == "__main__":
    main()
