"""What the fleet has done is counted once, kept small, and becomes coarser with age."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from atomic_celery import history
from atomic_celery.store.store import Store
from atomic_celery.store.traffic import SHARDS, Bucket, Sample, band_of

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def total(buckets: list[Bucket]) -> int:
    return sum(bucket.count for bucket in buckets)


def row_count(store: Store) -> int:
    return len({(b.begun_ms, b.kind, b.band) for b in store.traffic.read(0, 60)})


def test_what_hosts_count_is_added_up(store: Store) -> None:
    store.at(NOW_MS)
    store.traffic.add("a", [Sample("succeeded", 3, 2, 11), Sample("failed", 1, 1, 1)])
    store.traffic.add("a", [Sample("succeeded", 3, 1, 5)])
    store.traffic.add("b", [Sample("succeeded", 3, 10, 60)])
    begun_ms = NOW_MS // MINUTE_MS * MINUTE_MS
    assert store.traffic.read(0, 60) == [
        Bucket(begun_ms, "failed", 1, 1, 1),
        Bucket(begun_ms, "succeeded", 3, 13, 76),
    ]
    assert store.traffic.read(begun_ms + 1, 60) == []


def test_hosts_that_count_at_once_lose_nothing_and_do_not_deadlock(store: Store) -> None:
    kinds = [Sample(kind, band, 1, 1) for kind in ("succeeded", "failed", "retried") for band in range(8)]  # type: ignore[arg-type]

    def host(number: int) -> None:
        for turn in range(10):
            store.traffic.add(f"host-{number % 3}", kinds if turn % 2 else kinds[::-1])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(host, range(6)))
    assert total(store.traffic.read(0, 60)) == 6 * 10 * len(kinds)


def test_a_week_keeps_its_total_while_its_rows_become_few(store: Store) -> None:
    for minute in range(0, 7 * 24 * 60, 7):
        store.at(NOW_MS + minute * MINUTE_MS)
        store.traffic.add("h", [Sample("succeeded", 4, 1, 10)])
        if minute % 700 == 0:
            store.traffic.fold()
    store.traffic.fold()
    everything = store.traffic.read(0, 60)
    assert total(everything) == len(range(0, 7 * 24 * 60, 7))
    assert row_count(store) < 75 + 26 * 4 + 12 * 7 + 20
    week = history.read(store, history.PERIODS["7d"])
    day = history.read(store, history.PERIODS["24h"])
    hour = history.read(store, history.PERIODS["1h"])
    assert (len(hour.parts), len(day.parts), len(week.parts)) == (60, 96, 84)
    assert hour.ended_count == 9
    assert day.ended_count == pytest.approx(24 * 60 / 7, abs=3)
    assert sum(part.succeeded for part in week.parts) == week.ended_count


def test_what_is_older_than_a_week_goes(store: Store) -> None:
    store.at(NOW_MS)
    store.traffic.add("h", [Sample("succeeded", 4, 1, 10)])
    store.at(NOW_MS + 8 * 24 * 60 * MINUTE_MS)
    store.traffic.fold()
    assert store.traffic.read(0, 60) == []


def test_folding_at_once_counts_nothing_twice(store: Store) -> None:
    for minute in range(120):
        store.at(NOW_MS + minute * MINUTE_MS)
        store.traffic.add(f"h{minute % (2 * SHARDS)}", [Sample("succeeded", 4, 1, 10)])
    store.at(NOW_MS + 26 * 60 * MINUTE_MS)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.traffic.fold(), range(8)))
    assert total(store.traffic.read(0, 60)) == 120


@pytest.mark.parametrize(
    ("duration_ms", "band"), [(0, 0), (0.9, 0), (1, 1), (2, 2), (3.9, 2), (1000, 10), (-5, 0), (1e30, 40)]
)
def test_a_duration_has_a_band(duration_ms: float, band: int) -> None:
    assert band_of(duration_ms) == band


def test_what_waited_is_told_apart_from_what_ran(store: Store) -> None:
    store.at(NOW_MS)
    store.traffic.add("h", [Sample("succeeded", 4, 2, 20), Sample("retried", 4, 1, 9), Sample("waited", 10, 3, 2400)])
    hour = history.read(store, history.PERIODS["1h"])
    assert (hour.ended_count, hour.counts) == (2, {"succeeded": 2, "retried": 1})
    assert (hour.ran.mean_ms, hour.waited.mean_ms) == (10, 800)
    assert hour.waited.quantiles_ms["p50"] == pytest.approx(768)
    assert (hour.parts[-1].median_ms, hour.parts[-1].median_wait_ms) == (pytest.approx(12), pytest.approx(768))
    assert (hour.parts[0].median_ms, hour.parts[0].median_wait_ms) == (None, None)


def test_quantiles_are_within_the_band() -> None:
    buckets = [Bucket(0, "succeeded", 4, 90, 0), Bucket(0, "failed", 10, 10, 0)]
    assert history.quantile(buckets, 0.5) == pytest.approx(8 + 8 * 50 / 90)
    assert history.quantile(buckets, 0.95) == pytest.approx(768)
    assert history.quantile([], 0.5) is None
