"""`python -I -S leash.py PARENT COMMAND...`: become COMMAND, to be killed when process PARENT dies.

The signal is set by the program itself, since code between fork and exec is unsafe in a driver with threads.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def main(parent: int, command: list[str]) -> int:
    """Exit status 127 where the command is not there; otherwise this does not return."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:  # it died before the signal was set
        return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
