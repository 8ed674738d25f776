"""Events are kept in order, the last thousand of them, and only of what really happened."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from atomic_celery.store import fleet_events
from atomic_celery.store.store import Store

NOW_MS = 1_700_000_000_000


def test_an_event_comes_back_as_it_was_recorded(store: Store) -> None:
    store.at(NOW_MS)
    detail = {"reason": "ü", "count": 3, "ids": [1, 2], "more": None}
    store.events.record("drain-asked", host="h", instance="i", root="r", detail=detail)
    store.at(NOW_MS + 1)
    store.events.record("host-left")
    left, asked = store.events.list()
    assert (left.at_ms, left.kind, left.host, left.instance, left.root, left.detail) == (
        *(NOW_MS + 1, "host-left"),
        *(None, None, None, None),
    )
    assert (asked.at_ms, asked.kind, asked.host, asked.instance, asked.root, asked.detail) == (
        *(NOW_MS, "drain-asked"),
        *("h", "i", "r", detail),
    )


def test_events_are_found_by_what_they_concern_page_by_page(store: Store) -> None:
    for number in range(10):
        store.events.record("host-registered", host=f"h{number % 2}", detail={"n": number})
    store.events.record("host-left", host="h1", instance="i", root="r")

    def numbers(**asked: object) -> list[int]:
        return [event.detail["n"] for event in store.events.list(**asked) if event.detail]  # type: ignore[arg-type]

    assert numbers(host="h1") == [9, 7, 5, 3, 1]
    assert [event.kind for event in store.events.list(host="h1", limit=2)] == ["host-left", "host-registered"]
    first = store.events.list(kind="host-registered", limit=4)
    assert [event.detail for event in first] == [{"n": n} for n in (9, 8, 7, 6)]
    assert numbers(kind="host-registered", before=first[-1].id, limit=4) == [5, 4, 3, 2]
    for asked in ({"instance": "i"}, {"root": "r"}, {"kind": "host-left"}):
        assert [event.kind for event in store.events.list(**asked)] == ["host-left"]  # type: ignore[arg-type]
    assert store.events.list(host="nobody") == []


def test_only_the_last_ones_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fleet_events.KEPT == 1000
    monkeypatch.setattr(fleet_events, "KEPT", 5)
    for number in range(12):
        store.events.record("scale-up", detail={"n": number})
    assert [event.detail for event in store.events.list()] == [{"n": n} for n in (11, 10, 9, 8, 7)]


def test_recording_at_once_loses_nothing_and_keeps_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_events, "KEPT", 20)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: store.events.record("removed", detail={"n": n}), range(19)))
        assert {event.detail["n"] for event in store.events.list() if event.detail} == set(range(19))
        list(threads.map(lambda _: store.events.record("removed"), range(80)))
    store.events.record("removed")
    assert len(store.events.list()) == 20


def test_an_event_of_an_undone_transaction_never_was(store: Store) -> None:
    def record_and_fail() -> None:
        with store.transaction():
            store.events.record("message-dead")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        record_and_fail()
    assert store.events.list() == []


def test_every_kind_that_is_documented_can_be_recorded(store: Store) -> None:
    for kind in fleet_events.KINDS:
        store.events.record(kind)
    assert [event.kind for event in reversed(store.events.list())] == list(fleet_events.KINDS)
