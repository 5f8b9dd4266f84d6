"""Process 1 of a container: `python -I -S door.py SOCKET`. Takes one command from the driver, runs it, tells its end.

The driver sends three descriptors for input, output and errors, and a line of JSON: argv, env, cwd. It gets a line of
JSON back: the code, as in `os.waitstatus_to_exitcode`, or what was wrong. When this program ends, the kernel ends
everything else in the container. Until the line has come no code of others runs, so the driver can set limits first.
"""

import json
import os
import signal
import socket
import sys
from typing import Any

SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ]
"""Python ignores them, and a program would inherit that."""


def received(driver: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The command and its three descriptors."""
    data, descriptors, _, _ = socket.recv_fds(driver, 65536, 3)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    while not data.endswith(b"\n"):
        chunk = driver.recv(1 << 20)
        if not chunk:
            raise OSError("the driver went away")
        data += chunk
    return json.loads(data), descriptors


def run(command: dict[str, Any], descriptors: list[int]) -> int:
    """Be the parent of the command, and of whatever is orphaned, until the command ends."""
    os.chdir(command["cwd"])
    argv, env = command["argv"], command["env"]
    placed = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(descriptors)]
    try:
        child = os.posix_spawnp(argv[0], argv, env, file_actions=placed, setsid=True, setsigdef=SIGNALS)
    except OSError as error:
        os.write(descriptors[2], f"{argv[0]}: {error.strerror}\n".encode())
        return 127
    for descriptor in descriptors:
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(path: str) -> None:
    driver = socket.socket(socket.AF_UNIX)
    driver.connect(path)
    try:
        report: dict[str, Any] = {"code": run(*received(driver))}
    except OSError as error:
        report = {"error": str(error)}
    driver.sendall(json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
