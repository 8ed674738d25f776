"""Work over time, by formula: how many tasks arrive a second, *t* seconds after the beginning.

=========  ==========================================================================================
steady     ``rate``
daily      ``rate * (1 + depth * sin(2 pi t / 24 h - pi / 2))``: least at midnight, most at noon
bursts     ``rate`` all the time, and ``rate * height`` for the first ``length_s`` of every ``every_s``
batches    ``size`` tasks within a second, once in ``every_s``, and nothing in between
=========  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable

Trace = Callable[[float], float]
"""Tasks that arrive a second, at a time in seconds."""

DAY_S = 86_400.0


def steady(rate: float) -> Trace:
    """Return a rate that never changes."""
    return lambda _t: rate


def daily(rate: float, depth: float = 0.8) -> Trace:
    """Return a day's cycle around *rate*."""
    return lambda t: rate * (1 + depth * math.sin(2 * math.pi * t / DAY_S - math.pi / 2))


def bursts(rate: float, height: float = 10.0, every_s: float = 4 * 3600.0, length_s: float = 3600.0) -> Trace:
    """Return a rate with bursts."""
    return lambda t: rate * (height if t % every_s < length_s else 1.0)


def batches(size: float, every_s: float = 6 * 3600.0) -> Trace:
    """Return batches, with nothing in between."""
    return lambda t: size if t % every_s < 1 else 0.0


def shipped(hosts: int, slots: int, task_s: float) -> dict[str, Trace]:
    """Return one trace of each kind that uses up to nearly so many hosts."""
    full = hosts * slots / task_s  # tasks a second that they can run
    return {
        "steady": steady(0.3 * full),
        "daily": daily(0.54 * full),
        "bursts": bursts(0.075 * full),
        "batches": batches(3600 * full),
    }
