"""The operator's verbs do what they say, leave the rest alone, and leave an event that names who asked."""

from __future__ import annotations

import pytest

from atomic_celery import operations
from tests.store.desk import ALICE, Desk
from tests.store.test_hosts import host as a_host


def last_event(desk: Desk) -> tuple[str, dict[str, object]]:
    event = desk.store.events.list()[0]
    return event.kind, dict(event.detail or {})


def test_running_now_concerns_delayed_messages_only(desk: Desk) -> None:
    held = desk.publish()
    desk.claim()
    delayed, ready = desk.publish(due_ms=desk.now_ms + 3_600_000), desk.publish()
    done = operations.run_now(desk.store, [held, delayed, ready, 999], asked_by="ann")
    assert (done.ids, done.skipped) == ((delayed,), (held, ready, 999))
    assert desk.state(delayed) == "ready"
    assert desk.state(held) == "running"
    assert last_event(desk) == (
        "message-requeued",
        {"asked_by": "ann", "was": "delayed", "count": 1, "ids": [delayed]},
    )


def test_a_host_is_forgotten_only_when_it_is_stale_and_holds_nothing(desk: Desk) -> None:
    desk.store.hosts.register(a_host("h1"))
    assert not operations.forget_host(desk.store, "h1", asked_by="ann")
    desk.pass_ms(3_600_000)
    assert operations.forget_host(desk.store, "h1", asked_by="ann")
    assert desk.store.hosts.list() == []
    assert last_event(desk) == ("host-left", {"asked_by": "ann", "forgotten": True})
    assert not operations.forget_host(desk.store, "h1", asked_by="ann")

    desk.store.hosts.register(a_host(ALICE.id, boot=ALICE.boot))
    desk.publish()
    desk.claim(ALICE)
    desk.pass_ms(3_600_000)
    assert not operations.forget_host(desk.store, ALICE.id, asked_by="ann")
    assert len(desk.store.events.list()) == 1


@pytest.mark.parametrize("fence", [1, 2])
def test_a_term_is_resigned_by_its_fence(desk: Desk, fence: int) -> None:
    assert desk.store.terms.begin("fleet", "h1", 20_000) == 1
    resigned = operations.resign(desk.store, "fleet", fence, asked_by="ann")
    assert resigned is (fence == 1)
    [term] = desk.store.terms.list()
    assert (term.name, term.holder, term.fence) == ("fleet", "h1", 1)
    assert (term.left_ms <= 0) is resigned
    assert (desk.store.terms.begin("fleet", "h2", 20_000) == 2) is resigned
