"""Runs inside a sandbox: `python -I -S forwarder.py PORT SOCKET COMMAND...`.

A sandbox has a network of its own, with nothing in it but loopback. This program listens there on
127.0.0.1:PORT, carries every connection to the unix socket SOCKET, runs COMMAND as its child and ends with
the child's status. It imports as little as it can, since every rollout pays for its start.
"""

import _socket  # `socket` would add `enum` and `selectors`: two thirds of the start
import _thread
import os
import sys

CHUNK = 65536


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


def relay(inner: _socket.socket, path: str) -> None:
    """Serve one connection from inside."""
    outer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        outer.connect(path)
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(answer, (outer, inner, done))
        carry(inner, outer)
        done.acquire()
    except OSError as error:
        sys.stderr.write(f"forwarder: {path}: {error}\n")
    finally:
        inner.close()
        outer.close()


def accept(listener: _socket.socket, path: str) -> None:
    """Take connections for as long as the command lives."""
    while True:
        descriptor, _ = listener._accept()  # pyright: ignore[reportAttributeAccessIssue]
        inner = _socket.socket(fileno=descriptor)
        inner.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        _thread.start_new_thread(relay, (inner, path))


def main(port: int, path: str, command: list[str]) -> int:
    """Exit status of the command; 128 + N where signal N ended it, 127 where it is not there."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    try:
        child = os.posix_spawnp(command[0], command, os.environ)
    except OSError as error:
        sys.stderr.write(f"forwarder: {command[0]}: {error.strerror}\n")
        return 127
    _thread.start_new_thread(accept, (listener, path))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
