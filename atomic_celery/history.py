"""How much the fleet did, how long it took and had waited, over the last hour, day or week. Pure but for `read`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomic_celery.store import traffic

if TYPE_CHECKING:
    from atomic_celery.store.store import Store
    from atomic_celery.store.traffic import Bucket

ENDED = frozenset({"succeeded", "failed"})
"""Kinds that are the end of a task; a retry or a crash is followed by another attempt."""
BEGAN = frozenset({"waited"})
"""The kind that is no end of an attempt, but its beginning."""


@dataclass(frozen=True, slots=True)
class Period:
    """A span of time up to now, in equal parts."""

    name: str
    width_s: int
    part_count: int

    @property
    def length_s(self) -> int:
        """How long it is."""
        return self.width_s * self.part_count


PERIODS: Mapping[str, Period] = {
    period.name: period
    for period in (
        Period("1h", traffic.MINUTE_S, 60),
        Period("24h", traffic.QUARTER_S, 96),
        Period("7d", traffic.DOUBLE_HOUR_S, 84),
    )
}


@dataclass(frozen=True, slots=True)
class Part:
    """What ended in one part of a period."""

    begun_ms: int
    succeeded: int
    failed: int
    median_ms: float | None
    """How long half of what ended ran at most, as nearly as the bands of durations tell; None: nothing ended."""
    median_wait_ms: float | None
    """How long half of what began had waited at most; None: nothing began."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long attempts took, as nearly as the bands of durations tell; None: there were none."""

    mean_ms: float | None
    quantiles_ms: Mapping[str, float | None]
    """p50, p95 and p99."""


@dataclass(frozen=True, slots=True)
class History:
    """What ended in a period."""

    period: Period
    parts: tuple[Part, ...]
    """All of them, the oldest first; the last one goes on."""
    counts: Mapping[str, int]
    """How many attempts ended, by kind."""
    ran: Durations
    """How long those ran that were the end of a task."""
    waited: Durations
    """How long messages had been ready, or at a gate, when they first began to run."""

    @property
    def ended_count(self) -> int:
        """How many tasks ended."""
        return sum(self.counts.get(kind, 0) for kind in ENDED)

    @property
    def per_minute(self) -> float:
        """How many tasks ended a minute, on average."""
        return self.ended_count / (self.period.length_s / 60)


def read(store: Store, period: Period) -> History:
    """Read the counts of *period*."""
    [found] = _read(store, [period], store.now_ms())
    return found


def read_all(store: Store, now_ms: int) -> list[History]:
    """Read the counts of every period up to *now_ms*, the shortest first."""
    return _read(store, list(PERIODS.values()), now_ms)


def _read(store: Store, periods: Sequence[Period], now_ms: int) -> list[History]:
    begins = [begins_of(period, now_ms) for period in periods]
    wanted = [(each[0], period.width_s) for each, period in zip(begins, periods, strict=True)]
    return list(map(compose, periods, begins, store.traffic.read_each(wanted)))


def begins_of(period: Period, now_ms: int) -> list[int]:
    """Return when each part of a period up to *now_ms* begins, the oldest first."""
    width_ms = period.width_s * 1000
    last_ms = now_ms // width_ms * width_ms
    return [last_ms - back * width_ms for back in range(period.part_count - 1, -1, -1)]


def compose(period: Period, begins: Sequence[int], buckets: Iterable[Bucket]) -> History:
    """Put together what was read."""
    by_begin: dict[int, list[Bucket]] = {at_ms: [] for at_ms in begins}
    counts: Counter[str] = Counter()
    seen = list(buckets)
    for bucket in seen:
        if bucket.kind not in BEGAN:
            counts[bucket.kind] += bucket.count
        if bucket.begun_ms in by_begin:
            by_begin[bucket.begun_ms].append(bucket)
    return History(
        period=period,
        parts=tuple(_part(at_ms, there) for at_ms, there in by_begin.items()),
        counts=counts,
        ran=_durations(_of(ENDED, seen)),
        waited=_durations(_of(BEGAN, seen)),
    )


def _part(begun_ms: int, buckets: Sequence[Bucket]) -> Part:
    def number(kind: str) -> int:
        return sum(bucket.count for bucket in buckets if bucket.kind == kind)

    ran, waited = quantile(_of(ENDED, buckets), 0.5), quantile(_of(BEGAN, buckets), 0.5)
    return Part(begun_ms, number("succeeded"), number("failed"), ran, waited)


def _durations(buckets: Sequence[Bucket]) -> Durations:
    number = sum(bucket.count for bucket in buckets)
    return Durations(
        mean_ms=sum(bucket.total_ms for bucket in buckets) / number if number else None,
        quantiles_ms={f"p{percent}": quantile(buckets, percent / 100) for percent in (50, 95, 99)},
    )


def _of(kinds: Set[str], buckets: Iterable[Bucket]) -> list[Bucket]:
    return [bucket for bucket in buckets if bucket.kind in kinds]


def quantile(buckets: Iterable[Bucket], share: float) -> float | None:
    """Return how long *share* of what is in *buckets* took at most, evenly spread within each band; None: nothing."""
    by_band: Counter[int] = Counter()
    for bucket in buckets:
        by_band[bucket.band] += bucket.count
    wanted = share * by_band.total()
    for band, count in sorted(by_band.items()):
        if count and wanted <= count:
            low = 2.0 ** (band - 1) if band else 0.0
            return low + (2.0**band - low) * wanted / count
        wanted -= count
    return None
