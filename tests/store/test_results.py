"""What tasks came to is kept, and a chord is finished once, whatever the order and however often its parts come."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from atomic_celery import outbox
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import NewMessage
from atomic_celery.store.results import ChordClosed, ChordPart, ChordTerms, Finisher, FullChord, Outcome
from atomic_celery.store.store import Store
from tests.store.desk import Desk

KEEP_MS = 1000


def _outcome(task_id: str = "t", status: str = "SUCCESS", meta: str = "{}", keep_ms: int | None = None) -> Outcome:
    return Outcome(task_id, status, meta, keep_ms)


def _part(number: int, group_id: str = "g", keep_ms: int | None = None) -> ChordPart:
    return ChordPart(group_id, f"part-{number}", float(number), "SUCCESS", str(number), keep_ms)


def _finisher(desk: Desk, task_id: str = "finisher") -> Finisher:
    return Finisher("celery", desk.new("finish", task_id=task_id, task_name="finish"))


# What tasks came to


def test_an_outcome_can_be_read(desk: Desk) -> None:
    desk.store.results.record([_outcome("a", meta='{"a": "ü\\u0000"}'), _outcome("b", "FAILURE")])
    assert desk.store.results.get(["a", "b", "c"]) == {"a": ("SUCCESS", '{"a": "ü\\u0000"}'), "b": ("FAILURE", "{}")}


def test_the_last_word_counts(desk: Desk) -> None:
    for status in ("STARTED", "RETRY", "FAILURE"):
        desk.store.results.record([_outcome(status=status)])
        assert desk.store.results.get(["t"])["t"][0] == status


@pytest.mark.parametrize("later", ["STARTED", "FAILURE", "SUCCESS"])
def test_success_stays(desk: Desk, later: str) -> None:
    desk.store.results.record([_outcome(meta="first")])
    desk.store.results.record([_outcome(status=later, meta="later")])
    assert desk.store.results.get(["t"]) == {"t": ("SUCCESS", "first")}


def test_success_stays_within_one_call(desk: Desk) -> None:
    desk.store.results.record([_outcome(status="STARTED"), _outcome(meta="good"), _outcome(status="FAILURE")])
    assert desk.store.results.get(["t"]) == {"t": ("SUCCESS", "good")}


def test_recording_nothing_is_nothing(desk: Desk) -> None:
    desk.store.results.record([])
    assert desk.store.results.get([]) == {}


def test_who_waits_for_an_end_is_not_bothered_before(desk: Desk) -> None:
    desk.store.results.record([_outcome("a", "PROGRESS"), _outcome("b", "REVOKED")])
    assert set(desk.store.results.get(["a", "b"], final=True)) == {"b"}


def test_a_large_outcome_comes_back_whole(desk: Desk) -> None:
    meta = '"' + "x" * (8 * 1024 * 1024) + '"'
    desk.store.results.record([_outcome(meta=meta)])
    assert desk.store.results.get(["t"])["t"][1] == meta


def test_an_outcome_can_be_forgotten(desk: Desk) -> None:
    desk.store.results.record([_outcome()])
    desk.store.results.forget("t")
    desk.store.results.forget("t")
    assert desk.store.results.get(["t"]) == {}
    desk.store.results.record([_outcome(status="FAILURE")])
    assert desk.store.results.get(["t"])["t"][0] == "FAILURE"


def test_nothing_is_recorded_if_the_transaction_is_undone(desk: Desk) -> None:
    with desk.undone():
        desk.store.results.record([_outcome()])
    assert desk.store.results.get(["t"]) == {}


# As a holder


def test_a_holder_records_how_far_it_is(desk: Desk) -> None:
    desk.publish()
    held = desk.claim_one().held
    assert desk.store.results.record_held(_outcome(status="PROGRESS", meta="1"), held)
    assert desk.store.results.record_held(_outcome(status="PROGRESS", meta="2"), held)
    assert desk.store.results.get(["t"]) == {"t": ("PROGRESS", "2")}


def test_who_lost_its_lease_records_nothing(desk: Desk) -> None:
    desk.publish()
    first = desk.claim_one()
    desk.pass_ms(30_001)
    assert not desk.store.results.record_held(_outcome(status="PROGRESS"), first.held)
    desk.messages.reclaim()
    second = desk.claim_one()
    assert not desk.store.results.record_held(_outcome(status="PROGRESS"), first.held)
    assert desk.store.results.get(["t"]) == {}
    assert desk.store.results.record_held(_outcome(status="PROGRESS"), second.held)


def test_a_holder_does_not_take_success_back(desk: Desk) -> None:
    desk.publish()
    held = desk.claim_one().held
    desk.store.results.record([_outcome()])
    assert desk.store.results.record_held(_outcome(status="PROGRESS"), held)
    assert desk.store.results.get(["t"])["t"][0] == "SUCCESS"


# Expiry


def test_what_has_expired_cannot_be_read_and_goes(desk: Desk) -> None:
    desk.store.results.record([_outcome("a", keep_ms=KEEP_MS), _outcome("b", keep_ms=2 * KEEP_MS), _outcome("c")])
    desk.store.results.save_group("g", "[]", KEEP_MS)
    desk.store.results.describe_chord(ChordTerms("g", size=2, finisher=_finisher(desk), keep_ms=KEEP_MS))
    desk.store.results.count([_part(1, keep_ms=KEEP_MS)])
    desk.pass_ms(KEEP_MS)
    assert set(desk.store.results.get(["a", "b", "c"])) == {"b", "c"}
    assert desk.store.results.get_group("g") is None
    assert desk.store.results.expire() == 1
    assert desk.store.results.expire() == 0
    assert desk.store.results.count([_part(1), _part(2)]) == []  # nothing is left of the chord


def test_no_more_expires_at_once_than_asked(desk: Desk) -> None:
    desk.store.results.record([_outcome(f"t{number}", keep_ms=KEEP_MS) for number in range(5)])
    desk.pass_ms(KEEP_MS)
    assert [desk.store.results.expire(limit=2) for _ in range(3)] == [2, 2, 1]


def test_a_chord_lives_as_long_as_parts_come(desk: Desk) -> None:
    desk.store.results.describe_chord(ChordTerms("g", size=3, finisher=_finisher(desk), keep_ms=KEEP_MS))
    for number in (1, 2):
        desk.pass_ms(KEEP_MS - 1)
        desk.store.results.count([_part(number, keep_ms=KEEP_MS)])
        desk.store.results.expire()
    assert desk.store.results.count([_part(3)]) == [FullChord("g", _finisher(desk))]


# Groups


def test_a_group_is_kept_until_it_is_forgotten(desk: Desk) -> None:
    assert desk.store.results.get_group("g") is None
    desk.store.results.save_group("g", "1", None)
    desk.store.results.save_group("g", "2", None)
    assert desk.store.results.get_group("g") == "2"
    desk.store.results.forget_group("g")
    assert desk.store.results.get_group("g") is None


# Chords


def test_the_last_part_finishes_a_chord(desk: Desk) -> None:
    results, finisher = desk.store.results, _finisher(desk)
    assert results.describe_chord(ChordTerms("g", finisher=finisher)) is None
    assert results.describe_chord(ChordTerms("g", size=3)) is None
    assert results.count([_part(2)]) == []
    assert results.parts("g") == []
    assert results.count([_part(3), _part(1)]) == [FullChord("g", finisher)]
    assert results.parts("g") == [(f"part-{number}", "SUCCESS", str(number)) for number in (1, 2, 3)]


def test_a_part_that_ends_twice_counts_once(desk: Desk) -> None:
    results = desk.store.results
    results.describe_chord(ChordTerms("g", size=2, finisher=_finisher(desk)))
    assert results.count([_part(1), _part(1)]) == []
    assert results.count([_part(1)]) == []
    assert len(results.count([_part(1), _part(2)])) == 1
    assert results.count([_part(2)]) == []
    assert results.count([_part(3)]) == []


def test_parts_with_one_id_at_two_places_are_two(desk: Desk) -> None:
    results = desk.store.results
    results.describe_chord(ChordTerms("g", size=2, finisher=_finisher(desk)))
    assert results.count([ChordPart("g", "same", 0, "SUCCESS", "1")]) == []
    assert len(results.count([ChordPart("g", "same", 1, "SUCCESS", "1")])) == 1


def test_a_size_that_comes_last_finishes_a_chord(desk: Desk) -> None:
    results, finisher = desk.store.results, _finisher(desk)
    results.describe_chord(ChordTerms("g", finisher=finisher))
    assert results.count([_part(1), _part(2)]) == []
    assert results.describe_chord(ChordTerms("g", size=2)) == FullChord("g", finisher)
    assert results.describe_chord(ChordTerms("g", size=2)) is None
    assert results.count([_part(1)]) == []


def test_a_finisher_that_comes_last_finishes_a_chord(desk: Desk) -> None:
    results = desk.store.results
    results.count([_part(1)])
    results.describe_chord(ChordTerms("g", size=1))
    assert results.describe_chord(ChordTerms("g", finisher=_finisher(desk))) == FullChord("g", _finisher(desk))


@pytest.mark.parametrize("grown_first", [True, False])
def test_a_chord_that_grows_waits_for_more(desk: Desk, grown_first: bool) -> None:
    results = desk.store.results
    terms = [ChordTerms("g", more=1), ChordTerms("g", size=2, finisher=_finisher(desk))]
    for each in terms if grown_first else reversed(terms):
        assert results.describe_chord(each) is None
    assert results.count([_part(1), _part(2)]) == []
    assert len(results.count([_part(3)])) == 1
    assert results.describe_chord(ChordTerms("g", more=1)) is None


def test_a_chord_that_is_finished_by_hand_says_so(desk: Desk) -> None:
    results = desk.store.results
    results.describe_chord(ChordTerms("g", size=1, finished_by_hand=True))
    assert results.count([_part(1)]) == [FullChord("g", None)]


def test_chords_do_not_mix(desk: Desk) -> None:
    results = desk.store.results
    for group_id in ("g", "h"):
        results.describe_chord(ChordTerms(group_id, size=2, finisher=_finisher(desk, group_id)))
    assert results.count([_part(1, "g"), _part(1, "h"), _part(2, "h")]) == [FullChord("h", _finisher(desk, "h"))]
    assert results.parts("g") == []


def test_a_closed_chord_is_gone(desk: Desk) -> None:
    results = desk.store.results
    results.describe_chord(ChordTerms("g", size=1, finisher=_finisher(desk)))
    results.count([_part(1)])
    results.close_chords(["g", "unknown"])
    assert results.parts("g") == []
    assert results.count([_part(1)]) == []


def test_of_parts_that_end_at_the_same_moment_one_is_the_last(desk: Desk) -> None:
    count, workers = 60, 6
    desk.store.results.describe_chord(ChordTerms("g", size=count, finisher=_finisher(desk)))
    full: list[FullChord] = []

    def work(first: int) -> None:
        for number in range(first, count, workers):
            full.extend(desk.store.results.count([_part(number)]))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(full) == 1
    assert len(desk.store.results.parts("g")) == count


# Together


def test_what_a_task_leaves_is_done_in_one_transaction(desk: Desk) -> None:
    entries = [
        ChordTerms("g", size=1, finisher=_finisher(desk)),
        _part(1),
        desk.new("follow-up", task_id="f"),
        _outcome(),
    ]
    with desk.undone():
        outbox.deliver(desk.store, entries)
    assert desk.store.reads.messages() == []
    with desk.store.transaction():
        assert outbox.deliver(desk.store, entries) == []
    assert {view.task_id for view in desk.store.reads.messages()} == {"finisher", "f"}
    assert desk.store.results.get(["t"]) == {"t": ("SUCCESS", "{}")}
    with desk.store.transaction():
        outbox.deliver(desk.store, [ChordClosed("g")])
    assert desk.store.results.parts("g") == []


def test_a_deleted_queue_takes_its_messages_along_and_nothing_else(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    gone = desk.store.queues.declare(QueueSpec(name="gone")).id
    entries = [NewMessage(gone, "x", task_id="lost", task_name="x"), desk.new(task_id="kept"), _outcome()]
    desk.store.queues.delete("gone")
    with desk.store.transaction():
        outbox.deliver(desk.store, entries)
    assert [view.task_id for view in desk.store.reads.messages()] == ["kept"]
    assert desk.store.results.get(["t"])
    assert "x[lost] was dropped" in caplog.text


@pytest.mark.parametrize("made_anew", [True, False])
def test_a_chord_outlives_its_queue(desk: Desk, made_anew: bool) -> None:
    finisher = _finisher(desk)
    desk.store.results.describe_chord(ChordTerms("g", size=1, finisher=finisher))
    desk.store.queues.delete("celery")
    if made_anew:
        desk.store.queues.declare(QueueSpec(name="celery"))
    with desk.store.transaction():
        outbox.deliver(desk.store, [_part(1)])
    [view] = desk.store.reads.messages()
    assert (view.queue, view.task_id) == ("celery", "finisher")


# Waiting


def test_who_watches_is_rung_when_it_is_over(postgres_store: Store) -> None:
    with closing(postgres_store.doorbell("listener")) as bell:
        assert bell.wait(60) or bell.listening  # it has been opened
        postgres_store.results.watch("listener", ["a", "b"], 60_000)
        postgres_store.results.record([_outcome("a", "PROGRESS")])
        assert bell.wait(60)
        postgres_store.results.record([_outcome("other")])
        postgres_store.results.unwatch("listener", ["b"])
        postgres_store.results.record([_outcome("b")])
        assert not bell.wait(0.2)
        postgres_store.results.record([_outcome("a")])
        assert bell.wait(60)
        postgres_store.results.record([_outcome("a", "FAILURE")])
        assert not bell.wait(0.2)


def test_who_watches_for_nothing_is_forgotten(postgres_store: Store) -> None:
    postgres_store.results.watch("listener", ["a"], 1000)
    postgres_store.at(postgres_store.now_ms() + 1001)
    postgres_store.results.expire()
    database = postgres_store._database
    count = database.run(database.statements.script("count", "SELECT count(*) FROM atomic_watcher")).rows
    assert count == [(0,)]
