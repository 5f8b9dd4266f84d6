"""`python -I -S enclosure.py PARENT JSON`: run one program as root of a user namespace, and as nothing outside of it.

    driver -> this program -> process 1 of a process namespace -> the program, and all that it starts

The program may mount and unpack images, with ids that mean nothing on the host. When any link of the chain dies,
the kernel ends everything to the right of it, whatever it detached from. Standard library alone: it runs in a bare
interpreter.
"""

import ctypes
import json
import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 2, 4, 8, 4096, 16384, 1 << 19, 1 << 20
PR_SET_PDEATHSIG = 1
HYBRID = "/sys/fs/cgroup/unified"
"""The half of cgroup version 2 in a hybrid layout. crun refuses to start where it sees it, so it is hidden."""
FIRST_PASSED = 3
AS_PASSED = ("sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh")
"""Tells a program that descriptor 3 is a listening socket, as systemd does."""

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raise OSError where a system call failed."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (word.encode() for word in (source, target, kind))
    checked(libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def leash(alive: int) -> None:
    """Die with the parent process, whose end is also the end of the pipe `alive`."""
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    if select.select([alive], [], [], 0)[0]:
        sys.exit(1)


def closed(folder: Path, root: int) -> bool:
    """Whether the id `root`, to which nobody has given anything, may not pass."""
    status = folder.stat()
    return not status.st_mode & stat.S_IXOTH and status.st_uid != root


def show(paths: list[Path], root: int) -> None:
    """Make folders of the real root reachable for others, at their own place, in this mount namespace alone.

    An empty folder is laid over whatever closes the way, and the folders are shown again in it.
    """
    for path in paths:
        if closed(path, root):
            sys.exit(f"enclosure: containers cannot reach {path}, which is closed to others; chmod o+x {path}")
    held = [(path, os.open(path, os.O_PATH)) for path in paths]
    for path, descriptor in held:
        for folder in reversed(path.parents):
            if folder.is_dir() and closed(folder, root):
                mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
        path.mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", str(path), "", MS_BIND | MS_REC)
    for _, descriptor in held:
        os.close(descriptor)


def prepare_as_root(shown: list[Path], root: int) -> None:
    """What only the real root can do, seen by nobody else."""
    unshare(CLONE_NEWNS)
    mount("", "/", "", MS_REC | MS_SLAVE)
    show(shown, root)


def write_maps(pid: int, maps: dict[str, list[list[int]]]) -> None:
    """Say which ids of the host the ids of a new user namespace are."""
    for kind, lines in maps.items():
        if os.geteuid() == 0:
            text = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in lines)
            Path(f"/proc/{pid}/{kind}_map").write_text(text)
        else:
            words = [str(number) for line in lines for number in line]
            subprocess.run([f"new{kind}map", str(pid), *words], check=True)


def become_root_inside(maps: dict[str, list[list[int]]]) -> None:
    """Enter a new user namespace as its root. The maps have to be written from outside of it."""
    inside, outside = os.pipe()
    target = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(outside)
        os.read(inside, 1)
        write_maps(target, maps)
        os._exit(0)
    os.close(inside)
    unshare(CLONE_NEWUSER)
    os.close(outside)
    if os.waitpid(helper, 0)[1] != 0:
        sys.exit("enclosure: the ids could not be mapped")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def first_process(command: list[str], env: dict[str, str], listener: int | None) -> int:
    """Be process 1: own /proc and shared memory, reap whatever is orphaned, end with the command."""
    mount("", "/", "", MS_REC | MS_SHARED)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    if Path(HYBRID).is_mount():
        mount("tmpfs", HYBRID, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k")
    actions = []
    if listener is not None:
        actions = [(os.POSIX_SPAWN_DUP2, listener, FIRST_PASSED)]
        command = [*AS_PASSED, *command]
    child = os.posix_spawnp(command[0], command, env, file_actions=actions, setsid=True, setsigmask=[])
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(parent: int, spec: dict[str, Any]) -> int:
    """Exit status of the command; 128 + N where signal N ended it."""
    # Asked to end before process 1 is there, this program ends it as soon as it can.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    alive = os.pidfd_open(parent)
    leash(alive)
    if os.geteuid() == 0:
        prepare_as_root([Path(path) for path in spec["shown"]], spec["maps"]["uid"][0][1])
    become_root_inside(spec["maps"])
    leash(alive)  # the change of ids has let it go
    unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC)
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(there)
        leash(here)
        code = first_process(spec["command"], spec["env"], spec["listener"])
        os._exit(code if code >= 0 else 128 - code)
    os.close(here)
    # Process 1 has ended only when all the others have: whoever waits for this program waits for them.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"enclosure: {error}")
