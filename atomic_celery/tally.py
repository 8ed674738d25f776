"""What this process has begun and ended and not yet reported: counts by kind and duration."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from atomic_celery.store.traffic import KINDS, Kind, Sample, band_of

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
"""Where durations are told apart for as long as the process lives: of an idle fleet, and of a queue of hours."""


@dataclass(frozen=True, slots=True)
class Total:
    """What there was of one kind since the process started, by how long it took."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    """Those up to each of `BOUNDS_S` and above the one before it; then those above all."""
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def __add__(self, other: Total) -> Total:
        return Total(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.sum_s + other.sum_s)


class Tally:
    """Counts until they are taken. Safe from any thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Kind, int], tuple[int, int]] = {}
        self._totals = {kind: [0] * (len(BOUNDS_S) + 1) for kind in KINDS}
        self._sums_s = dict.fromkeys(KINDS, 0.0)
        self._lock = threading.Lock()

    def add(self, outcome: str, duration_ms: float) -> None:
        """Count an attempt that began or ended; what is none of `KINDS` is not counted."""
        kind = _KINDS.get(outcome)
        if kind is not None:
            duration_ms = max(0.0, duration_ms)  # who is told to run at once was not due yet
            self._add(kind, band_of(duration_ms), 1, round(duration_ms))
            with self._lock:
                self._totals[kind][bisect_left(BOUNDS_S, duration_ms / 1000)] += 1
                self._sums_s[kind] += duration_ms / 1000

    def totals(self) -> dict[Kind, Total]:
        """Return what there was of each kind since this process started, reported or not."""
        with self._lock:
            return {kind: Total(tuple(counts), self._sums_s[kind]) for kind, counts in self._totals.items()}

    def take(self) -> list[Sample]:
        """Return what was counted, and begin at nothing."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return [Sample(kind, band, count, total_ms) for (kind, band), (count, total_ms) in sorted(counts.items())]

    def give_back(self, samples: Iterable[Sample]) -> None:
        """Count again what could not be reported."""
        for sample in samples:
            self._add(sample.kind, sample.band, sample.count, sample.total_ms)

    def _add(self, kind: Kind, band: int, count: int, total_ms: int) -> None:
        with self._lock:
            before_count, before_ms = self._counts.get((kind, band), (0, 0))
            self._counts[kind, band] = (before_count + count, before_ms + total_ms)


_KINDS: dict[str, Kind] = {kind: kind for kind in KINDS}
