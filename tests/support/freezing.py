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
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats} == {"T"}
