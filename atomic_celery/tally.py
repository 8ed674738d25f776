"""What this process has begun and ended and not yet reported: counts by kind and duration."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from atomic_celery.store.traffic import KINDS, Kind, Sample, band_of


class Tally:
    """Counts until they are taken. Safe from any thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Kind, int], tuple[int, int]] = {}
        self._totals: dict[Kind, int] = {}
        self._lock = threading.Lock()

    def add(self, outcome: str, duration_ms: float) -> None:
        """Count an attempt that began or ended; what is none of `KINDS` is not counted."""
        kind = _KINDS.get(outcome)
        if kind is not None:
            duration_ms = max(0.0, duration_ms)  # who is told to run at once was not due yet
            self._add(kind, band_of(duration_ms), 1, round(duration_ms))
            with self._lock:
                self._totals[kind] = self._totals.get(kind, 0) + 1

    def totals(self) -> dict[Kind, int]:
        """Return how many there were of each kind since this process started, reported or not."""
        with self._lock:
            return dict(self._totals)

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
