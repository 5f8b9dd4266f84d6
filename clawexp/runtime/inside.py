"""Process 1 of a sandbox where there is no C compiler: `python -I -S inside.py DRIVER [PORT PROXY]`.

The same program as `inside.c`, which says what it does. It takes an interpreter's time to start and has a thread for
each direction of a connection.
"""

import _ctypes  # the whole of `ctypes`, `socket` and `signal` would double the start
import _signal  # pyright: ignore[reportMissingImports]
import _socket
import _thread
import os
import sys

PR_SET_DUMPABLE = 4
CHUNK = 65536
STREAMS = 3
SIZE = 4
"""Bytes of a length, and of a descriptor's number."""
DEFAULT = [_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT]
"""Signals that Python, or this program, ignores, and a command would inherit that."""

FOLDERS = ("/dev/shm", "/dev/mqueue")
TABLES = ("/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg")
"""Where that stands which programs share beside files."""


def receive(driver: _socket.socket, size: int, streams: list[int]) -> bytes:
    """Exactly so much of an order; descriptors that come with it are added to `streams`."""
    data = b""
    while len(data) < size:
        part, control, _, _ = driver.recvmsg(
            size - len(data), _socket.CMSG_SPACE(STREAMS * SIZE), _socket.MSG_CMSG_CLOEXEC
        )
        if not part:
            os._exit(1)  # the driver is gone
        for _, _, sent in control:
            streams += [int.from_bytes(sent[at : at + SIZE], sys.byteorder) for at in range(0, len(sent), SIZE)]
        data += part
    return data


def report(driver: _socket.socket, text: str) -> None:
    data = text.encode()
    driver.sendall(len(data).to_bytes(SIZE, "big") + data)


def started(order: bytes, streams: list[int]) -> int | None:
    """The process of a command; None where its program is not there. Raises OSError for its working directory."""
    cwd, count, *words = order.split(b"\0")[:-1]
    argv, env = words[: int(count)], dict(word.split(b"=", 1) for word in words[int(count) :])
    os.environb.pop(b"PATH", None)
    if b"PATH" in env:
        os.environb[b"PATH"] = env[b"PATH"]  # where the program is looked for
    placed = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
    os.chdir(cwd)
    try:
        return os.posix_spawnp(argv[0], argv, env, file_actions=placed, setsid=True, setsigdef=DEFAULT)
    except OSError as error:
        os.write(streams[2], b"%s: %s\n" % (argv[0], (error.strerror or "").encode()))
        return None
    finally:
        os.chdir("/")


def ended(child: int) -> int:
    """How a command ended; by then everything that it has left is gone."""
    code = None
    while code is None:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
    try:
        while True:
            os.kill(-1, _signal.SIGKILL)
            os.wait()
    except (ProcessLookupError, ChildProcessError):
        return code


def left() -> int:
    """How much is left of earlier commands but files."""
    there = sum(len(os.listdir(folder)) for folder in FOLDERS if os.path.isdir(folder))  # noqa: PTH112, PTH208
    lines = 0
    for table in TABLES:
        with open(table, "rb") as file:  # noqa: PTH123 - `pathlib` would double the start, too
            lines += len(file.readlines()) - 1
    return there + lines


def take_order(driver: _socket.socket) -> None:
    streams: list[int] = []
    size = int.from_bytes(receive(driver, SIZE, streams), "big")
    if not size:
        report(driver, f"T{left()}")
        return
    order = receive(driver, size, streams)
    try:
        child = started(order, streams)
    except OSError as error:
        report(driver, f"E{error.filename!s}: {error.strerror}")
        return
    finally:
        for descriptor in streams:
            os.close(descriptor)
    report(driver, f"C{127 if child is None else ended(child)}")


def carry(source: _socket.socket, target: _socket.socket) -> None:
    """Copy bytes one way until the end, then pass the end on."""
    try:
        while chunk := source.recv(CHUNK):
            target.sendall(chunk)
        target.shutdown(_socket.SHUT_WR)
    except OSError:  # one side is gone: the other one learns it now
        for end in (source, target):
            try:
                end.shutdown(_socket.SHUT_RDWR)
            except OSError:
                continue


def answer(outer: _socket.socket, inner: _socket.socket, done: _thread.LockType) -> None:
    """Carry what comes back from outside."""
    try:
        carry(outer, inner)
    finally:
        done.release()


def relay(inner: _socket.socket, proxy: str) -> None:
    """Serve one connection from inside."""
    outer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        outer.connect(proxy)
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(answer, (outer, inner, done))
        carry(inner, outer)
        done.acquire()
    except OSError:  # the proxy is gone: so is the connection
        pass
    finally:
        inner.close()
        outer.close()


def accept(listener: _socket.socket, proxy: str) -> None:
    while True:
        descriptor, _ = listener._accept()  # pyright: ignore[reportAttributeAccessIssue]
        inner = _socket.socket(fileno=descriptor)
        inner.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        _thread.start_new_thread(relay, (inner, proxy))


def listen_on(port: int, proxy: str) -> None:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    _thread.start_new_thread(accept, (listener, proxy))


def called(where: str) -> _socket.socket:
    """The stream to the driver."""
    if not where.startswith("/"):
        os.set_inheritable(int(where), False)
        return _socket.socket(fileno=int(where))
    driver = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    driver.connect(where)
    return driver


def main(where: str, *forwarded: str) -> None:
    if os.getpid() != 1:
        sys.exit("inside: it ends all processes that it can see, so it is process 1 of a sandbox or none")
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]
    _ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    if forwarded:
        port, proxy = forwarded
        listen_on(int(port), proxy)
    driver = called(where)
    report(driver, "S")
    while True:
        take_order(driver)


if __name__ == "__main__":
    main(*sys.argv[1:])
