"""Of the messages with a key one is stored; when the key is free again is said by who took it."""

from __future__ import annotations

import pytest

from tests.store.desk import Desk
from tests.store.hosts import Host


@pytest.fixture
def alice(desk: Desk) -> Host:
    """A holder."""
    return Host(desk)


@pytest.mark.parametrize("until", ["queued", "unfinished"])
def test_a_key_is_taken_once(desk: Desk, until: str) -> None:
    first, second = (desk.new(task_id=name, unique_key="k", unique_until=until) for name in ("t1", "t2"))
    [message_id] = desk.messages.publish([first])

    assert message_id is not None
    assert desk.messages.publish([second]) == [None]
    assert desk.messages.publish(
        [desk.new(task_id="t3", unique_key="k", unique_until=until, due_ms=desk.now_ms + 9)]
    ) == [None]
    assert desk.store.limits.key_holders(["k", "other"]) == {"k": "t1"}


def test_a_key_is_taken_once_among_those_published_together(desk: Desk) -> None:
    new = [desk.new(task_id=name, unique_key="k", unique_until="unfinished") for name in ("t1", "t2")]

    first, second = desk.messages.publish([*new])

    assert (first is None, second is None) == (False, True)


@pytest.mark.parametrize(("until", "free"), [("queued", True), ("unfinished", False)])
def test_a_key_is_free_when_it_starts_or_when_it_is_over(desk: Desk, alice: Host, until: str, free: bool) -> None:
    desk.messages.publish([desk.new(unique_key="k", unique_until=until)])
    [claimed] = alice.claim()

    [again] = desk.messages.publish([desk.new(unique_key="k", unique_until=until)])
    assert (again is not None) == free

    desk.messages.complete([claimed.held])
    [third] = desk.messages.publish([desk.new(unique_key="k", unique_until=until)])
    assert (third is not None) != free


@pytest.mark.parametrize("end", ["bury", "crashes", "delete"])
def test_who_is_put_aside_gives_its_key_free(desk: Desk, alice: Host, end: str) -> None:
    desk.messages.publish([desk.new(unique_key="k", unique_until="unfinished")])
    [claimed] = alice.claim()
    if end == "crashes":
        for _ in range(desk.store.settings.max_crashes):
            desk.messages.crash([claimed.held], "killed")
            claimed = next(iter(alice.claim()), claimed)
    else:
        getattr(desk.messages, end)([claimed.id], *(["why"] if end == "bury" else []))

    assert desk.messages.publish([desk.new(unique_key="k", unique_until="unfinished")]) != [None]


def test_a_task_that_goes_on_is_not_in_its_own_way(desk: Desk, alice: Host) -> None:
    desk.messages.publish([desk.new(task_id="t", unique_key="k", unique_until="unfinished")])
    [claimed] = alice.claim()

    desk.messages.supersede(claimed.held, desk.new(task_id="t", unique_key="k", unique_until="unfinished"))

    assert desk.messages.publish([desk.new(task_id="u", unique_key="k", unique_until="unfinished")]) == [None]
    desk.messages.complete([claimed.held])
    assert desk.messages.publish([desk.new(task_id="u", unique_key="k", unique_until="unfinished")]) == [None]
