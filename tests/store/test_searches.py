"""A search reads no more than its window, misses nothing, and says where it goes on."""

from __future__ import annotations

import json

from atomic_celery.store.reads import Filter
from tests.store.desk import ALICE, BOB, Desk


def ids(found: object) -> list[int]:
    return [message.id for message in found.messages]  # type: ignore[attr-defined]


def test_every_state_is_found_page_by_page(desk: Desk) -> None:
    made = [desk.publish(f"p{number}", task_id=f"t{number}", task_name="shop.pay") for number in range(5)]
    desk.store.messages.bury([made[0]], "why")
    [claimed] = desk.claim(limit=1)
    delayed = desk.publish(due_ms=desk.now_ms + 10_000)
    search = desk.store.searches.messages

    first = search(Filter(), before=None, limit=4, window=4)
    assert (ids(first), first.next_before) == ([delayed, *made[:1:-1]], made[2])
    second = search(Filter(), before=first.next_before, limit=4, window=4)
    assert (ids(second), second.next_before) == ([made[1], made[0]], None)
    states = {message.id: message.state for message in (*first.messages, *second.messages)}
    assert states[delayed] == "delayed"
    assert states[claimed.id] == "running"
    assert states[made[0]] == "dead"
    assert states[made[4]] == "ready"


def test_a_search_stops_at_its_window_and_goes_on(desk: Desk) -> None:
    wanted = desk.publish("the NEEDLE", task_name="rare")
    for number in range(10):
        desk.publish(f"hay {number}", task_name="common")
    found, before, looks = [], None, 0
    while True:
        look = desk.store.searches.messages(Filter(text="needle"), before=before, limit=10, window=4)
        found += ids(look)
        before, looks = look.next_before, looks + 1
        assert look.looked_at <= 4
        if before is None:
            break
    assert (found, looks) == ([wanted], 3)
    assert ids(desk.store.searches.messages(Filter(task="rare"), before=None, limit=10, window=100)) == [wanted]
    assert ids(desk.store.searches.messages(Filter(queue="other"), before=None, limit=10, window=100)) == []


def test_a_state_has_a_window_of_its_own(desk: Desk) -> None:
    dead = desk.publish()
    desk.store.messages.bury([dead], "why")
    for _ in range(10):
        desk.publish()
    assert ids(desk.store.searches.messages(Filter(state="dead"), before=None, limit=5, window=5)) == [dead]


def test_what_holders_hold_is_told_apart(desk: Desk) -> None:
    first, second, third = (desk.publish(task_name=f"n{number}") for number in range(3))
    desk.claim(ALICE, limit=1)
    desk.pass_ms(5)
    desk.claim(ALICE, limit=1)
    desk.claim(BOB, limit=1)
    held = desk.store.searches.held_by([ALICE.id, BOB.id, "nobody"])
    assert [(h.holder, h.id, h.task_name) for h in held] == [
        (ALICE.id, first, "n0"),
        (ALICE.id, second, "n1"),
        (BOB.id, third, "n2"),
    ]
    assert [h.id for h in desk.store.searches.held_by([BOB.id])] == [third]
    assert desk.store.searches.held_by([]) == []


def test_the_family_of_a_root_is_told_with_who_sent_whom(desk: Desk) -> None:
    def payload(parent: str | None) -> str:
        return json.dumps({"headers": {"parent_id": parent}})

    own = desk.publish(payload(None), task_id="r", root_id="r")
    child = desk.publish(payload("r"), task_id="a", task_name="n", root_id="r")
    dead = desk.publish(payload("a"), task_id="b", root_id="r")
    desk.publish(payload(None), task_id="other", root_id="other")
    desk.store.messages.bury([dead], "why")
    family = [(each.id, each.parent_id, each.state) for each in desk.store.searches.family("r", limit=10)]
    assert family == [(dead, "a", "dead"), (child, "r", "ready"), (own, None, "ready")]
    assert [each.id for each in desk.store.searches.family("r", limit=1)] == [dead, own]
    assert desk.store.searches.family("none", limit=1) == []
