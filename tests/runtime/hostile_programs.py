"""Attempts to get out of a sandbox: `python -I -S hostile_programs.py NAME`, run inside of one.

Its input is JSON that tells where on the host there is something to be had. An attempt that returns has succeeded; the
program prints `SUCCEEDED: what`. One that the system stops raises OSError, or Stopped, and the program prints
`stopped: why`. Anything else is an error of the attempt itself. All of them are bounded, and change nothing outside of
what the tests made: where nothing stops them, the machine must live. Standard library alone.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_REC, MS_PRIVATE, MS_BIND = 16384, 1 << 18, 4096
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
TIOCSTI = 0x5412
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
"""Of which a sandbox may have its own."""
SYSCALLS = {
    "x86_64": {"add_key": 248, "keyctl": 250, "pidfd_getfd": 438, "pidfd_open": 434, "bpf": 321, "userfaultfd": 323},
    "aarch64": {"add_key": 217, "keyctl": 219, "pidfd_getfd": 438, "pidfd_open": 434, "bpf": 280, "userfaultfd": 282},
}[os.uname().machine]

World = dict[str, Any]
libc = ctypes.CDLL(None, use_errno=True)


class Stopped(Exception):
    """What was tried had no effect, without an error of the system."""


@dataclass(frozen=True)
class Attempt:
    """One program and what must stop it."""

    run: Callable[[World], str]
    guard: str
    by_root: bool
    """Only a driver that is root could do it at all, where nothing but its own rights stops it."""


ATTEMPTS: dict[str, Attempt] = {}


def stopped_by(guard: str, *, by_root: bool = False) -> Callable[[Callable[[World], str]], Callable[[World], str]]:
    """Enter a program into the table."""

    def enter(run: Callable[[World], str]) -> Callable[[World], str]:
        ATTEMPTS[run.__name__] = Attempt(run, guard, by_root)
        return run

    return enter


def checked(result: int, what: str) -> int:
    """Raise OSError where a call of libc failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, *arguments: Any) -> int:
    return checked(libc.syscall(SYSCALLS[name], *arguments), name)


def answer(family: int, address: Any) -> str:
    """What somebody says who answers there."""
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        caller.settimeout(5)
        caller.connect(address)
        said = caller.recv(100)
    if not said:
        raise Stopped("the connection was closed")
    return said.decode()


def processes() -> Iterator[Path]:
    """Folders of all processes that are seen here, but for this one and its parents."""
    mine, pid = set(), os.getpid()
    while pid > 0:
        mine.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in mine:
            yield entry


def holding(word: str, file: str) -> Path:
    """The process whose file of /proc has this word. Raises Stopped."""
    for entry in processes():
        with contextlib.suppress(OSError):
            if word.encode() in (entry / file).read_bytes():
                return entry
    raise Stopped(f"no process that is seen here has it in its {file}")


def the_victim(world: World) -> int:
    """Process of the host, as it is numbered here. Raises Stopped."""
    return int(holding(world["victim_word"], "cmdline").name)


def in_own_user_namespace(flags: int = 0) -> None:
    """Be root of a new one, where that is allowed."""
    uid, gid = os.getuid(), os.getgid()
    checked(libc.unshare(CLONE_NEWUSER | flags), "unshare")
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def opened(path: Path, flags: int) -> str:
    """Open, and do nothing with it."""
    os.close(os.open(path, flags))
    return f"opened {path}"


# The network.


@stopped_by("network namespace")
def host_port(world: World) -> str:
    """A service of the host that listens on its loopback."""
    return answer(socket.AF_INET, ("127.0.0.1", world["port"]))


@stopped_by("network namespace")
def another_port_of_the_proxy(world: World) -> str:
    """The model boundary's port for another rollout."""
    return answer(socket.AF_INET, ("127.0.0.1", world["other_proxy_port"]))


@stopped_by("network namespace")
def host_port_by_ipv6(world: World) -> str:
    return answer(socket.AF_INET6, ("::1", world["port6"]))


@stopped_by("network namespace")
def neighbours_port(world: World) -> str:
    """A service that another sandbox has started."""
    return answer(socket.AF_INET, ("127.0.0.1", world["neighbour_port"]))


@stopped_by("network namespace")
def name_server(world: World) -> str:
    """DNS, and whatever else can be told in a datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.settimeout(2)
        caller.connect(("127.0.0.1", world["name_server"]))
        caller.send(b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1")
        return f"an answer of {len(caller.recv(512))} bytes"


@stopped_by("network namespace")
def metadata_service(world: World) -> str:
    """Credentials of a cloud's machine. No packet is sent: it is asked of the routes whether there is a way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.connect(("169.254.169.254", 80))
        return f"a way from {caller.getsockname()[0]}"


@stopped_by("network namespace")
def abstract_socket_of_the_host(world: World) -> str:
    return answer(socket.AF_UNIX, "\0" + world["abstract"])


@stopped_by("mount namespace")
def another_rollouts_socket(world: World) -> str:
    """The model boundary's socket of another rollout, by its path."""
    return answer(socket.AF_UNIX, world["other_socket"])


@stopped_by("no capabilities; seccomp")
def raw_socket(world: World) -> str:
    """To read or forge what others send."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()
    except PermissionError:
        in_own_user_namespace(CLONE_NEWNET)
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return "a socket for packets"


@stopped_by("no capabilities; no user namespaces", by_root=True)
def configure_the_network(world: World) -> str:
    """Set the flags of loopback to what they are."""
    request = struct.pack("16sH22x", b"lo", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        now = fcntl.ioctl(caller, 0x8913, request)
        try:
            fcntl.ioctl(caller, 0x8914, now)
        except PermissionError:
            in_own_user_namespace()
            fcntl.ioctl(caller, 0x8914, now)
    return "flags of an interface were set"


@stopped_by("read-only mount")
def replace_the_proxys_socket(world: World) -> str:
    """Take the model boundary's place for whoever comes later."""
    path = Path(world["proxy_socket"])
    path.rename(path.with_name("moved"))
    path.with_name("moved").rename(path)
    return f"moved {path}"


# Other processes.


@stopped_by("process namespace")
def environment_of_others(world: World) -> str:
    """A key in the environment of a process of the host."""
    return str(holding(world["victim_secret"], "environ"))


@stopped_by("process namespace")
def environment_of_the_neighbour(world: World) -> str:
    return str(holding(world["neighbour_secret"], "environ"))


@stopped_by("process namespace")
def command_lines_of_others(world: World) -> str:
    return str(holding(world["victim_word"], "cmdline"))


@stopped_by("process namespace")
def memory_of_others(world: World) -> str:
    pid = the_victim(world)
    first = Path(f"/proc/{pid}/maps").read_text().split("-")[0]
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(int(first, 16))
        return f"{len(memory.read(64))} bytes"


@stopped_by("process namespace")
def ptrace(world: World) -> str:
    pid = the_victim(world)
    checked(libc.ptrace(PTRACE_ATTACH, pid, 0, 0), "ptrace")
    os.waitpid(pid, 0x40000000)
    libc.ptrace(PTRACE_DETACH, pid, 0, 0)
    return f"process {pid} was held"


@stopped_by("process namespace")
def signal_to_the_host(world: World) -> str:
    """By its number there: SIGCONT harms nobody."""
    os.kill(world["victim_pid"], signal.SIGCONT)
    return f"process {world['victim_pid']} got a signal"


@stopped_by("process namespace")
def kill_by_name(world: World) -> str:
    """As `pkill -9 -f WORD` does."""
    found = [int(entry.name) for entry in processes() if _named(entry, world["prey_word"])]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    if not found:
        raise Stopped("no process of that name is seen here")
    return f"killed {found}"


def _named(entry: Path, word: str) -> bool:
    with contextlib.suppress(OSError):
        return word.encode() in (entry / "cmdline").read_bytes()
    return False


@stopped_by("process namespace")
def descriptor_of_others(world: World) -> str:
    """Take an open file from a process of the host."""
    held = syscall("pidfd_open", the_victim(world), 0)
    return f"descriptor {syscall('pidfd_getfd', held, 0, 0)}"


@stopped_by("process namespace")
def root_of_others(world: World) -> str:
    """The host's files by the root folder of one of its processes."""
    for entry in processes():
        with contextlib.suppress(OSError):
            return (entry / "root" / world["secret_file"].lstrip("/")).read_text()
    raise Stopped("no process that is seen here has it below its root")


@stopped_by("IPC namespace")
def shared_memory(world: World) -> str:
    """A segment of System V."""
    segment = checked(libc.shmget(world["shared_key"], 0, 0), "shmget")
    return f"segment {segment}"


@stopped_by("mount namespace")
def shared_memory_file(world: World) -> str:
    return (Path("/dev/shm") / world["shared_file"]).read_text()


# Files of the host.


@stopped_by("mount namespace")
def file_of_the_host(world: World) -> str:
    return Path(world["secret_file"]).read_text()


@stopped_by("mount namespace")
def solution(world: World) -> str:
    """Of the task that it works on, beside the task."""
    return Path(world["solution"]).read_text()


@stopped_by("mount namespace")
def grader(world: World) -> str:
    """Write to it where it lies on the host."""
    return opened(Path(world["grader"]), os.O_WRONLY)


@stopped_by("mount namespace")
def key_of_another_rollout(world: World) -> str:
    """In a file of its sandbox, by its path on the host."""
    return Path(world["neighbour_key"]).read_text()


@stopped_by("read-only mount")
def harness_package(world: World) -> str:
    """Change the harness for all who come later."""
    return opened(Path(world["package"]) / "main.js", os.O_WRONLY)


@stopped_by("read-only base", by_root=True)
def system_files(world: World) -> str:
    try:
        return opened(Path("/etc/passwd"), os.O_WRONLY)
    except PermissionError:
        return opened(Path("/usr/lib/os-release"), os.O_WRONLY)


@stopped_by("mount namespace", by_root=True)
def private_keys_of_the_host(world: World) -> str:
    """Where certificates lie, keys lie beside."""
    for path in (Path("/etc/ssl/private"), Path("/etc/shadow")):
        with contextlib.suppress(OSError):
            return opened(path, os.O_RDONLY)
    raise Stopped("none of them is there")


@stopped_by("no descriptors are passed on")
def descriptors_that_were_left_open(world: World) -> str:
    """One of a folder of the host is a way out, one of a pipe of the driver may be a lie to it."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if int(entry.name) > 2:
                found.append(str(entry.readlink()))
    if not found:
        raise Stopped("there is none but input, output and errors")
    return str(found)


# The kernel.


@stopped_by("no capabilities; seccomp")
def mount(world: World) -> str:
    """Lay a file system over the workspace, seen by nobody else."""
    try:
        checked(libc.unshare(CLONE_NEWNS), "unshare")
    except PermissionError:
        in_own_user_namespace(CLONE_NEWNS)
    checked(libc.mount(b"", b"/", b"", ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount")
    checked(libc.mount(b"none", b".", b"tmpfs", ctypes.c_ulong(0), b"size=64k"), "mount")
    return "mounted"


@stopped_by("no capabilities; locked mounts")
def remount_writable(world: World) -> str:
    """Bring a read-only mount back, in a namespace of its own."""
    try:
        checked(libc.unshare(CLONE_NEWNS), "unshare")
    except PermissionError:
        in_own_user_namespace(CLONE_NEWNS)
    checked(libc.mount(b"", b"/", b"", ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount")
    checked(libc.mount(b"/usr", b"/usr", b"", ctypes.c_ulong(MS_BIND), None), "mount")
    checked(libc.mount(b"", b"/usr", b"", ctypes.c_ulong(MS_BIND | 32), None), "mount")
    return "remounted"


@stopped_by("seccomp")
def new_user_namespace(world: World) -> str:
    """The door to most faults of the kernel that let an ordinary user become root."""
    in_own_user_namespace()
    return f"id {os.getuid()} of a new user namespace"


@stopped_by("seccomp")
def new_user_namespace_by_clone(world: World) -> str:
    """The same by another call."""
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    child = checked(libc.syscall(number, CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0), "clone")
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "a process in a new user namespace"


@stopped_by("seccomp")
def keyring(world: World) -> str:
    """Keys of the kernel know no namespace of their own."""
    key = syscall("add_key", b"user", b"clawexp-hostile", b"x", 1, -1)
    return f"key {key}"


@stopped_by("seccomp; no capabilities", by_root=True)
def program_in_the_kernel(world: World) -> str:
    """A map of BPF."""
    attributes = struct.pack("IIII", 2, 4, 8, 1) + bytes(64)
    os.close(syscall("bpf", 0, attributes, len(attributes)))
    return "a map"


@stopped_by("seccomp; no capabilities", by_root=True)
def log_of_the_kernel(world: World) -> str:
    """It tells addresses."""
    return f"{checked(libc.klogctl(3, ctypes.create_string_buffer(4096), 4096), 'syslog')} bytes"


@stopped_by("no new privileges; its ids are nobody's")
def become_root(world: World) -> str:
    try:
        os.setresuid(0, 0, 0)
    except PermissionError:
        in_own_user_namespace()
    return f"id {os.geteuid()}"


@stopped_by("no new privileges")
def gain_by_a_setuid_program(world: World) -> str:
    """What a program of another owner would get, it must not keep from before. Stopped where the kernel says so."""
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        raise Stopped("no new privileges")
    return "a setuid program would run with its owner's rights"


@stopped_by("no capabilities; no devices", by_root=True)
def device_node(world: World) -> str:
    """A device of the host, by its numbers."""
    path = Path("node")
    try:
        os.mknod(path, stat.S_IFMT(world["device_mode"]) | 0o600, world["device"])
        return opened(path, os.O_RDONLY | os.O_NONBLOCK)
    finally:
        path.unlink(missing_ok=True)


@stopped_by("no devices", by_root=True)
def devices_of_the_host(world: World) -> str:
    """Disks, memory, virtual machines."""
    for entry in Path("/dev").iterdir():
        if entry.name not in DEVICES and (entry.is_block_device() or entry.is_char_device()):
            with contextlib.suppress(OSError):
                return opened(entry, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
    raise Stopped("there are none that can be opened")


@stopped_by("read-only /proc; its ids are nobody's", by_root=True)
def core_pattern(world: World) -> str:
    """A program that the host's kernel starts as root when anything crashes."""
    return opened(Path("/proc/sys/kernel/core_pattern"), os.O_WRONLY)


@stopped_by("read-only /proc; its ids are nobody's", by_root=True)
def stop_the_machine(world: World) -> str:
    """By a key that it takes for pressed, or by what it does after a fault. Opened, not written."""
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/panic_on_oops"):
        with contextlib.suppress(OSError):
            return opened(Path(path), os.O_WRONLY)
    raise Stopped("nothing of that can be written")


@stopped_by("read-only /proc; its ids are nobody's", by_root=True)
def adjust_the_machine(world: World) -> str:
    return opened(Path("/proc/sys/vm/overcommit_memory"), os.O_WRONLY)


@stopped_by("masked /proc; its ids are nobody's", by_root=True)
def state_of_the_kernel(world: World) -> str:
    """What is not for everybody to read of /proc: memory, tables, keys."""
    for path in Path("/proc").iterdir():
        if path.is_file() and not path.name.isdigit() and not path.stat().st_mode & stat.S_IROTH:
            with contextlib.suppress(OSError):
                return opened(path, os.O_RDONLY | os.O_NONBLOCK)
    raise Stopped("nothing of that can be read")


@stopped_by("no control groups in sight", by_root=True)
def release_agent(world: World) -> str:
    """A program that the host's kernel starts as root when a control group empties; or a group without limits."""
    for root in [Path("/sys/fs/cgroup")]:
        for name in ("release_agent", "cgroup.procs"):
            for path in [*root.glob(name), *root.glob(f"*/{name}")]:
                with contextlib.suppress(OSError):
                    return opened(path, os.O_WRONLY)
    raise Stopped("there are none that can be written")


@stopped_by("no capabilities; seccomp")
def leave_by_chroot(world: World) -> str:
    """The old way out of a changed root: change it again, below the folder that one stands in."""
    try:
        Path("jail").mkdir()
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.chroot("jail")
        except PermissionError:
            in_own_user_namespace()
            os.chroot("jail")
        os.fchdir(here)
        for _ in range(50):
            os.chdir("..")
        os.chroot(".")
        return Path(world["secret_file"]).read_text()
    finally:
        with contextlib.suppress(OSError):
            Path("jail").rmdir()


@stopped_by("no capabilities", by_root=True)
def file_by_its_handle(world: World) -> str:
    """Open the root folder of the file system by its number, whatever is mounted."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    checked(libc.name_to_handle_at(-100, b"/", handle, ctypes.byref(mount_id), 0), "name_to_handle_at")
    here = os.open("/", os.O_RDONLY)
    return f"descriptor {checked(libc.open_by_handle_at(here, handle, 0), 'open_by_handle_at')}"


@stopped_by("no capabilities", by_root=True)
def priority(world: World) -> str:
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    return "went before the others"


@stopped_by("UTS namespace; no capabilities", by_root=True)
def name_of_the_host(world: World) -> str:
    """Set it to what it is."""
    name = os.uname().nodename.encode()
    checked(libc.sethostname(name, len(name)), "sethostname")
    return "set"


@stopped_by("a session without a terminal")
def terminal_of_the_driver(world: World) -> str:
    """What is typed into it so, the shell reads that started it all."""
    terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    with contextlib.suppress(OSError):  # a kernel may be told to refuse it; whoever has the terminal can write there
        fcntl.ioctl(terminal, TIOCSTI, b"\n")
    return f"wrote {os.write(terminal, b' ')} byte"


@stopped_by("no /sys, or a read-only one", by_root=True)
def sysfs(world: World) -> str:
    """Devices, firmware and tuning of the host."""
    for path in (Path("/sys/kernel/mm/transparent_hugepage/enabled"), Path("/sys/kernel/profiling")):
        with contextlib.suppress(OSError):
            return opened(path, os.O_WRONLY)
    raise Stopped("nothing of that can be written")


# What there is little of. Each is far below what would hurt the machine, and above the limit.


@stopped_by("control group: pids")
def fork_bomb(world: World) -> str:
    children = []
    try:
        for _ in range(world["many_processes"]):
            child = os.fork()
            if child == 0:
                time.sleep(20)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return f"{len(children)} processes"


@stopped_by("control group: memory")
def memory_bomb(world: World) -> str:
    block = bytearray(world["much_memory"])
    for place in range(0, len(block), 4096):
        block[place] = 1
    return f"{len(block)} bytes"


@stopped_by("control group: memory")
def memory_bomb_in_shared_memory(world: World) -> str:
    """What processes could share counts, too."""
    with mmap.mmap(-1, world["much_memory"]) as block:
        for place in range(0, len(block), 4096):
            block[place] = 1
        return f"{len(block)} bytes"


@stopped_by("a file may not grow beyond the bound")
def one_large_file(world: World) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = Path("large")
    try:
        with path.open("wb") as file:
            file.truncate(world["much_disk"])
    finally:
        path.unlink(missing_ok=True)
    return f"a file of {world['much_disk']} bytes"


@stopped_by("bound on the disk")
def disk_fill(world: World) -> str:
    """Many files, and time for whoever counts them."""
    folder = Path("fill")
    folder.mkdir()
    number = world["much_disk"] >> 21
    for name in range(number):
        (folder / str(name)).write_bytes(bytes(2 << 20))
    time.sleep(world["patience_s"])
    for name in range(number):
        (folder / str(name)).unlink()
    folder.rmdir()
    return f"{number} files of 2 MB"


@stopped_by("bound on the disk")
def disk_fill_without_names(world: World) -> str:
    """Files that were removed while they are open."""
    held = []
    for name in range(world["much_disk"] >> 23):
        held.append(os.open(f"fill-{name}", os.O_RDWR | os.O_CREAT))
        Path(f"fill-{name}").unlink()
        for _ in range(8):
            os.write(held[-1], bytes(1 << 20))
    time.sleep(world["patience_s"])
    return f"{len(held)} files of 8 MB"


# What lies in wait for the driver, when the program has ended.


def linger(world: World) -> str:
    """Outlive the command, and change the grader when it comes."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        for number in range(3):
            os.close(number)
        end = time.monotonic() + world["patience_s"]
        while time.monotonic() < end:
            if Path("grader.py").exists():
                Path("grader.py").write_text("changed")
                break
            time.sleep(0.02)
        os._exit(0)
    os.wait()
    return "a process lies in wait"


def plant(world: World) -> str:
    """Links and pipes where the driver will read and write."""
    for name, target in (("answer.txt", world["secret_file"]), ("grader.py", world["target"])):
        Path(name).symlink_to(target)
    for name, target in (("folder", world["secret_file"]), ("tests", world["target"])):
        Path(name).symlink_to(Path(target).parent)
    os.mkfifo("pipe")
    return "planted"


def flood(world: World) -> str:
    """Say more than is kept."""
    for _ in range(world["much_output"] >> 16):
        os.write(1, b"x" * (1 << 16))
    return "said"


PLANTS = {run.__name__: run for run in (linger, plant, flood)}


def main(name: str, world: World) -> None:
    try:
        end = f"SUCCEEDED: {ATTEMPTS[name].run(world) if name in ATTEMPTS else PLANTS[name](world)}"
    except (OSError, Stopped) as error:
        end = f"stopped: {error or type(error).__name__}"
    except MemoryError:
        end = "stopped: no memory"
    sys.stdout.write(f"{end}\n")


if __name__ == "__main__":
    main(sys.argv[1], json.load(sys.stdin))
