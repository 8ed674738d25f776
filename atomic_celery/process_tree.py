"""Ending a process together with everything it started.

Signals reach a process or a process group; what a task starts may leave both. A child is therefore made the reaper of
its orphans, so that whatever it started stays below it in the process table, and is found there. What it leaves behind
when it dies unasked is found by a mark in the environment, which programs inherit. Where there is no ``/proc`` only the
process group is reached.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import NamedTuple

from atomic_celery import clock

MARK = "ATOMIC_CHILD"
"""The environment variable that says which child a process comes from."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 200
_CLEAN_ROUNDS = 2  # one scan may miss a process that changes its parent meanwhile
_HALTED = frozenset("TtZXD")
_DEAD = frozenset("ZX")
_LOOK_EVERY_S = 0.005


class _Process(NamedTuple):
    state: str
    parent: int


def keep_together() -> None:
    """Make this process the parent of what its children leave behind, and not die before them. Linux only.

    Celery has a pool process killed with its parent. But whatever it has started can be found only while it lives.
    """
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def send(pid: int, signum: int) -> None:
    """Signal *pid*, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def send_group(pgid: int, signum: int) -> None:
    """Signal the process group *pgid*, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


def kill(pid: int) -> None:
    """End *pid* and every process it started, also those in sessions of their own."""
    send(pid, signal.SIGSTOP)  # what stands still starts nothing more
    _kill_below(pid, until_halted=True)
    send_group(pid, signal.SIGKILL)
    send(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """End every process that this one started."""
    _kill_below(os.getpid(), until_halted=False)


def kill_marked(mark: str) -> None:
    """End every program whose environment carries *mark*."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = _marked(f"{MARK}={mark}".encode()) - killed
        if not found:
            return
        for process in found:
            send(process, signal.SIGKILL)
        killed |= found


def await_death(pids: set[int], *, at_most_s: float) -> None:
    """Return when all *pids* are dead, whether or not somebody has asked for their exit codes."""
    give_up_at_s = clock.monotonic_s() + at_most_s
    while pids & _living() and clock.monotonic_s() < give_up_at_s:
        clock.pause(_LOOK_EVERY_S)


def zombies() -> set[int]:
    """Return the dead children of this process that nobody has asked for yet."""
    own = os.getpid()
    return {pid for pid, process in _processes().items() if process == ("Z", own)}


def _kill_below(pid: int, *, until_halted: bool) -> None:
    killed: set[int] = set()
    clean_rounds = 0
    for _ in range(_ROUNDS):
        table = _processes()
        found = _below(pid, table) - killed
        for process in found:
            send(process, signal.SIGKILL)
        killed |= found
        halted = not until_halted or pid not in table or table[pid].state in _HALTED
        clean_rounds = 0 if found or not halted else clean_rounds + 1
        if clean_rounds == _CLEAN_ROUNDS:
            return


def _below(pid: int, table: dict[int, _Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process, (_, parent) in table.items():
        children.setdefault(parent, []).append(process)
    found, unseen = [], list(children.get(pid, ()))
    while unseen:
        process = unseen.pop()
        found.append(process)
        unseen += children.get(process, ())
    return {process for process in found if table[process].state not in _DEAD}


def _living() -> set[int]:
    return {pid for pid, process in _processes().items() if process.state not in _DEAD}


def _marked(variable: bytes) -> set[int]:
    found = set()
    for pid in _living():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            if variable in environ.read().split(b"\0"):
                found.add(pid)
    return found


def _processes() -> dict[int, _Process]:
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:
        return {}
    table = {}
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # the command's name may contain anything, so count from its closing bracket
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
                table[int(name)] = _Process(state.decode(), int(parent))
    return table
