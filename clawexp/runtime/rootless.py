"""Run programs inside an enclosure: as root of a user namespace, as nobody on the host, never beyond the driver's end.

A driver that is root needs no further preparation: it maps ids that are nobody's. A user's come from /etc/subuid.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clawexp.errors import RuntimeFault
from clawexp.runtime import enclosure
from clawexp.runtime.ids import ids, unmapped

INTERPRETER = Path(sys.executable).resolve()
PROGRAMS = {"podman": "podman", "crun": "crun", "conmon": "conmon"}
"""What containers need, and the Debian packages that bring it."""
PROBE_S = 60
TAIL = 2000
"""Bytes of a failed program's output in a message."""


def enclosed(
    command: Sequence[str], env: Mapping[str, str], shown: Sequence[Path], listener: int | None = None
) -> tuple[str, ...]:
    """The command line that runs `command` enclosed.

    `shown`: folders of the host that it shall reach, whoever may pass their parents. `listener`: a listening socket
    that it gets as systemd would pass it.
    """
    spec = {
        "command": list(command),
        "env": dict(env),
        "maps": ids().maps,
        "shown": [str(path.absolute()) for path in shown],
        "listener": listener,
    }
    return (str(INTERPRETER), "-I", "-S", enclosure.__file__, str(os.getpid()), json.dumps(spec))


def call(command: Sequence[str], env: Mapping[str, str], shown: Sequence[Path], timeout_s: float) -> str:
    """Run enclosed to the end; what it printed. Raises RuntimeFault with the tail of its errors."""
    # The thread that forks has to live on: its end would be the end of the leash.
    with subprocess.Popen(
        enclosed(command, env, shown), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}
    ) as process:
        try:
            printed, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise RuntimeFault(f"{' '.join(command)}: not done within {timeout_s:.0f} s") from error
    if process.returncode != 0:
        tail = (said or printed)[-TAIL:].decode(errors="replace").strip()
        raise RuntimeFault(f"{' '.join(command)} ended with {process.returncode}: {tail}")
    return printed.decode()


@functools.cache
def unavailable() -> str | None:
    """Why rootless containers do not work here; None where they do. Tried once for each process."""
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        return f"it needs the packages {', '.join(missing)}; on Debian: apt-get install {' '.join(missing)} uidmap"
    reason = unmapped()
    if reason:
        return reason
    try:
        call(["true"], {"PATH": os.environ.get("PATH", os.defpath)}, [], PROBE_S)
    except RuntimeFault as error:
        return f"user namespaces are not to be had: {error}"
    return None
