"""Local time that stands still until a test moves it."""

from __future__ import annotations

from dataclasses import dataclass

from atomic_celery.clock import Moment


@dataclass(slots=True)
class ManualClock:
    """A clock that moves when it is told to."""

    monotonic_s: float = 1000.0
    wall_s: float = 1_700_000_000.0

    def now(self) -> Moment:
        """Read both clocks."""
        return Moment(self.monotonic_s, self.wall_s)

    def advance(self, by_s: float) -> None:
        """Move both clocks forward."""
        self.monotonic_s += by_s
        self.wall_s += by_s
