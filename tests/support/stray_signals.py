"""Signals that find a thread of a process other than the main one, which is asleep in a system call meanwhile.

A signal that comes right before the main thread falls asleep is like it: no Python code runs that could answer it.
"""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path


def signal_another_thread(pid: int, signum: int) -> None:
    """Send a signal to a thread of a process that is not its main one.

    Raises:
        ValueError: It has no other.
    """
    others = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    if not others:
        raise ValueError(f"process {pid} has one thread only")
    for thread_id in others:  # in any order: the numbers begin anew when they are used up
        if not ctypes.CDLL(None, use_errno=True).tgkill(pid, thread_id, signum):
            return
        if ctypes.get_errno() != errno.ESRCH:  # one that has just ended
            break
    raise OSError(ctypes.get_errno(), f"no other thread of process {pid} can be signalled")
