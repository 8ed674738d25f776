"""Named points at which a test may stop, freeze or kill this very process.

Nothing happens unless ``ATOMIC_FAULTS`` is set when the process starts, e.g.
``ATOMIC_FAULTS="turn.committing=kill,claim.done=stop@3"``: kill at the first ``turn.committing``, stop (SIGSTOP)
at the third ``claim.done``. ``raise`` raises `InjectedFault`. A comma ends one order; ``@n`` says at which visit of
a process. ``ATOMIC_FAULTS_ONCE`` names a directory: of all processes that share it, one carries out each order.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}


class InjectedFault(Exception):
    """Raised where a test asked for it."""


def _parse(text: str) -> dict[str, tuple[str, int]]:
    orders: dict[str, tuple[str, int]] = {}
    for order in filter(None, (part.strip() for part in text.split(","))):
        point, _, action = order.partition("=")
        verb, _, visit = action.partition("@")
        orders[point] = (verb or "kill", int(visit or 1))
    return orders


_orders = _parse(os.environ.get("ATOMIC_FAULTS", ""))
_once_in = os.environ.get("ATOMIC_FAULTS_ONCE")
_visits: Counter[str] = Counter()


def _is_first(point: str) -> bool:
    if _once_in is None:
        return True
    try:
        os.close(os.open(os.path.join(_once_in, f"fault.{point}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def reach(point: str) -> None:
    """Say that execution has come to *point*; returns at once unless a fault was ordered there."""
    if not _orders or point not in _orders:
        return
    _visits[point] += 1
    verb, visit = _orders[point]
    if _visits[point] != visit or not _is_first(point):
        return
    if verb == "raise":
        raise InjectedFault(point)
    # Sent to this thread: a signal to the process may be taken by another one, and this one runs on for a while.
    signal.pthread_kill(threading.get_ident(), _SIGNALS[verb])
