"""Runs one program and is the parent of whatever that leaves behind, so that all of it is found below this process.

A script that knows nothing of this package: ``python -I -S keeper.py DESCRIPTOR PROGRAM ARGUMENT…``. It ends as the
program does. If there is no such program it writes the number of the error to the descriptor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_STARTED = 127


def main(report: int, command: list[str]) -> None:
    """Run *command*; does not return."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # who was to end this one may die over it
    program = os.fork()
    if program == 0:
        _become(report, command)
    os.close(report)
    _end_as(_await(program))


def _become(report: int, command: list[str]) -> None:
    os.set_inheritable(report, False)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and programs inherit that
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(report, str(error.errno).encode())
        os._exit(_NOT_STARTED)


def _await(program: int) -> int:
    while True:
        ended, status = os.wait()  # what was left behind has its end noted, too
        if ended == program:
            return os.waitstatus_to_exitcode(status)


def _end_as(exit_code: int) -> None:
    if exit_code < 0:
        if -exit_code != signal.SIGKILL:
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
