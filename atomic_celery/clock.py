"""Local time: the only place that asks the operating system for it.

Shared deadlines are the database's and never come near this module. What is measured here is how long
something took *on this machine*, by two clocks, because either one may stand still or jump.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)  # goes on while the machine sleeps; Linux only


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of both local clocks, in seconds."""

    monotonic_s: float
    wall_s: float

    def later(self, by_s: float) -> Moment:
        """Return the moment *by_s* seconds after this one."""
        return Moment(self.monotonic_s + by_s, self.wall_s + by_s)

    def reached(self, now: Moment) -> bool:
        """Whether *now* is past this moment by either clock: the earlier one wins."""
        return now.monotonic_s >= self.monotonic_s or now.wall_s >= self.wall_s

    def seconds_from(self, now: Moment) -> float:
        """Return how long until this moment by whichever clock is first; below 0 once past."""
        return min(self.monotonic_s - now.monotonic_s, self.wall_s - now.wall_s)


NEVER = Moment(float("inf"), float("inf"))


class Clock(Protocol):
    """Where local time comes from."""

    def now(self) -> Moment:
        """Read both clocks."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Moment:
        """Read both clocks."""
        return Moment(monotonic_s(), time.time())


def monotonic_s() -> float:
    """Seconds that never run backwards and, where the system can, count a sleeping machine too."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def awake_s(moment_s: float) -> float:
    """Translate a `monotonic_s` to `time.monotonic`: Celery's clock, which may stand still with the machine."""
    return time.monotonic() - (monotonic_s() - moment_s)


def wall_s() -> float:
    """Seconds since 1970 by this machine's clock: a diagnostic, never a deadline of the database's."""
    return time.time()


def pause(seconds: float) -> None:
    """Sleep. For programs that have nothing to wake them; loops wait on events instead."""
    time.sleep(seconds)
