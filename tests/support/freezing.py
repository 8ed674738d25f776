"""Freezing a process, and knowing that it is frozen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.waiting import wait_until


def freeze(pid: int) -> None:
    """Stop a process, and wait until none of its threads runs: on a busy machine they go on for a while."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_frozen(pid), describe=f"process {pid} stands still")


def is_frozen(pid: int) -> bool:
    """Whether all of its threads stand still."""
    return {_state(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")} - {None} == {"T"}


def _state(stat: Path) -> str | None:
    """Return the letter of a thread's state; None when it has just ended."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
