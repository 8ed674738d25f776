"""Real beats: whatever happens to the one that leads, each due run is enqueued once."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from tests.beat.beats import BeatProcess, Beats
from tests.beat.conftest import MakeBeats
from tests.support.freezing import is_frozen
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.workers import LONG_TERM


def test_one_of_two_beats_runs_the_schedule(beats: Beats) -> None:
    first = beats.start_leading("first", env=LONG_TERM)
    second = beats.start("second")
    beats.wait_until(lambda: "beat: Starting" in second.log)

    assert_each_once(beats, beats.wait_for_runs(4))
    assert beats.leads(first)
    assert "Sending due task" not in second.log


def test_a_beat_that_ends_hands_over_at_once(beats: Beats) -> None:
    first = beats.start_leading("first")
    beats.wait_for_runs(1)
    first.signal(signal.SIGTERM)

    assert first.wait() == 0
    assert beats.leader() is None
    second = beats.start_leading("second")
    assert_each_once(beats, beats.wait_for_runs(4))
    second.signal(signal.SIGINT)
    assert second.wait() == 0
    assert beats.leader() is None


def test_another_takes_over_from_a_beat_that_was_killed(beats: Beats) -> None:
    first, second = two_beats(beats)
    count = len(beats.wait_for_runs(2))
    first.signal(signal.SIGKILL)

    beats.wait_until(lambda: beats.leads(second), what="the second leads")
    assert_each_once(beats, beats.wait_for_runs(count + 6))


def test_a_beat_frozen_past_its_term_enqueues_nothing_when_it_goes_on(beats: Beats) -> None:
    first, second = two_beats(beats, LONG_TERM)
    count = len(beats.wait_for_runs(2))
    first.freeze()
    beats.wait_until(lambda: beats.leads(second), what="the second leads")
    beats.wait_for_runs(count + 4)

    first.signal(signal.SIGCONT)
    beats.wait_until(lambda: "lost the term" in first.log, what="the first knows")

    assert_each_once(beats, beats.wait_for_runs(count + 8))
    assert beats.leads(second)


def test_the_term_goes_back_and_forth_and_no_run_is_lost_or_repeated(beats: Beats) -> None:
    first, second = two_beats(beats)
    for frozen, awake in ((first, second), (second, first), (first, second)):
        count = len(beats.runs.numbers())
        beats.wait_for_runs(count + 1)
        frozen.freeze()
        beats.wait_until(lambda awake=awake: beats.leads(awake), what="the other leads")
        frozen.signal(signal.SIGCONT)

    assert_each_once(beats, beats.wait_for_runs(len(beats.runs.all()) + 4))


@pytest.mark.parametrize("point", ["tick.committing", "tick.committed"])
def test_a_beat_killed_around_its_commit_leaves_the_run_to_be_enqueued_once(beats: Beats, point: str) -> None:
    first = beats.start("first", faults=f"{point}=kill@3")
    assert first.wait() == -signal.SIGKILL

    beats.start_leading("second")
    assert_each_once(beats, beats.wait_for_runs(8))


def test_a_beat_frozen_in_its_transaction_is_put_out_of_it(postgres_url: str, make_beats: MakeBeats) -> None:
    beats = make_beats(postgres_url)
    first = beats.start("first", faults="tick.committing=stop@3")
    beats.wait_until(lambda: is_frozen(first.pid), what="the first stands still in its transaction")
    second = beats.start("second")
    beats.wait_until(lambda: beats.leads(second), what="the second leads")

    first.signal(signal.SIGCONT)
    beats.wait_until(lambda: "waits for the database" in first.log or "lost the term" in first.log)

    assert_each_once(beats, beats.wait_for_runs(10))


def test_a_commit_whose_answer_got_lost_is_not_done_twice(own_postgres: PostgresServer, make_beats: MakeBeats) -> None:
    url = own_postgres.create_database()
    with Proxy.before(url) as proxy:
        beats = make_beats(url)
        first = beats.start_leading("first", env={**LONG_TERM, "TEST_BROKER": f"atomic+{proxy.url(url)}"})
        for _ in range(2):
            beats.wait_for_runs(len(beats.runs.all()) + 1)
            lost = proxy.drop_next_response(b"COMMIT", after=b"atomic_messages_publish")
            beats.wait_until(lost.is_set)
        beats.wait_until(lambda: "waits for the database" in first.log)

        assert_each_once(beats, beats.wait_for_runs(len(beats.runs.all()) + 3))
        assert beats.leads(first)


def test_beats_wait_for_a_database_that_restarts(own_postgres: PostgresServer, make_beats: MakeBeats) -> None:
    beats = make_beats(own_postgres.create_database())
    first, second = two_beats(beats)
    count = len(beats.wait_for_runs(2))
    own_postgres.kill()
    beats.wait_until(lambda: "waits for the database" in first.log + second.log)
    own_postgres.start()

    assert_each_once(beats, beats.wait_for_runs(count + 8))
    assert first.running
    assert second.running


def test_a_beat_started_before_its_database_waits_for_it(own_postgres: PostgresServer, make_beats: MakeBeats) -> None:
    beats = make_beats(own_postgres.create_database())
    own_postgres.stop()
    first = beats.start("first")
    beats.wait_until(lambda: "waits for the database" in first.log)
    own_postgres.start()

    assert_each_once(beats, beats.wait_for_runs(3))


def test_a_task_that_cannot_be_published_costs_no_other_its_run(database_url: str, make_beats: MakeBeats) -> None:
    schedule = {
        "tick": {"task": "tick", "schedule": 0.5},
        "broken": {"task": "broken", "schedule": 0.5, "options": {"serializer": "unheard-of"}},
    }
    beats = make_beats(database_url, schedule=schedule)
    first = beats.start_leading("first")

    beats.wait_for_runs(4)
    first.signal(signal.SIGTERM)
    first.wait()

    assert_each_once(beats, beats.runs.numbers())
    known = beats.fleet.store.schedules.load("application")
    assert known["tick"].total_runs == len(beats.runs.numbers())
    assert known["broken"].total_runs > 0
    assert "'broken' could not be published" in first.log


def two_beats(beats: Beats, second_env: Mapping[str, str] | None = None) -> tuple[BeatProcess, BeatProcess]:
    """Start two beats, the first of which leads, and wait until both are up."""
    first = beats.start_leading("first")
    second = beats.start("second", env=second_env)
    beats.wait_until(lambda: "beat: Starting" in second.log)
    return first, second


def assert_each_once(beats: Beats, numbers: list[int]) -> None:
    """No run twice, none missing, in order."""
    assert beats.runs.twice() == []
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    task_ids = [run.task_id for run in beats.runs.all()]
    assert len(set(task_ids)) == len(task_ids)


def test_a_machine_whose_clock_jumps_runs_by_the_databases(database_url: str, make_beats: MakeBeats) -> None:
    beats = make_beats(database_url)
    offset = beats.fleet.directory / "offset"
    offset.write_text("0")
    env = {"TEST_CLOCK": str(offset)}
    first = beats.start_leading("first", application="tests.beat.jumping", env=env)
    for jump in ("3600", "-3600", "0"):
        beats.wait_for_runs(len(beats.runs.all()) + 2)
        (ahead := offset.with_suffix(".next")).write_text(jump)
        ahead.replace(offset)  # whoever reads it finds a number
        beats.wait_for_runs(len(beats.runs.all()) + 2)

    assert_each_once(beats, beats.wait_for_runs(len(beats.runs.all()) + 2))
    assert "lost the term" in first.log  # it does not trust a clock that jumps
