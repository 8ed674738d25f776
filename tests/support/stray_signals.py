"""Signals that find a thread of a process other than the main one, which is asleep in a system call meanwhile.

A signal that comes right before the main thread falls asleep is like it: no Python code runs that could answer it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path


def signal_another_thread(pid: int, signum: int) -> None:
    """Send a signal to a thread of a process that is not its main one.

    Raises:
        ValueError: It has no other.
    """
    thread_id = max(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
    if thread_id == pid:
        raise ValueError(f"process {pid} has one thread only")
    if ctypes.CDLL(None, use_errno=True).tgkill(pid, thread_id, signum):
        raise OSError(ctypes.get_errno(), f"thread {thread_id} of process {pid} cannot be signalled")
