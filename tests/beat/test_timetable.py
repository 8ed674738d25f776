"""When a periodic task is due, and what becomes of runs that nobody was there for."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, schedules
from hypothesis import given
from hypothesis import strategies as st

from atomic_celery.beat.timetable import MISSED, Timetable, Verdict

LATE_MS = 30_000
POLICIES: tuple[MISSED, ...] = ("skip", "last", "all")

app = Celery("timetable", broker="memory://", set_as_current=False)
app.conf.timezone = "Europe/Berlin"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp() * 1000)


def utc(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%F %T")


def every(seconds: float, **options: Any) -> Timetable:
    return Timetable(schedules.schedule(seconds, app=app, **options))


def cron(*fields: str) -> Timetable:
    return Timetable(schedules.crontab(*fields, app=app))


def due_times(timetable: Timetable, last: str, count: int) -> list[str]:
    last_ms: float = ms(last)
    found = []
    for _ in range(count):
        last_ms = timetable.after(last_ms, ms(last))
        found.append(utc(last_ms))
    return found


def runs(timetable: Timetable, last_ms: int, now_ms: int, missed: MISSED) -> list[int]:
    """Follow the verdicts until there is nothing left to do."""
    found = []
    while (verdict := timetable.judge(last_ms, now_ms, missed, LATE_MS)).do != "wait":
        last_ms = int(verdict.at_ms)
        if verdict.do == "run":
            found.append(last_ms)
    assert verdict.at_ms > now_ms
    return found


def test_an_interval_is_counted_from_the_last_due_time_without_drift() -> None:
    assert due_times(every(10), "2026-06-01 00:00:03", 3) == [
        "2026-06-01 00:00:13",
        "2026-06-01 00:00:23",
        "2026-06-01 00:00:33",
    ]


def test_an_interval_relative_to_the_clock_is_due_on_the_round_hour() -> None:
    assert due_times(every(3600, relative=True), "2026-06-01 00:20:00", 2) == [
        "2026-06-01 01:00:00",
        "2026-06-01 02:00:00",
    ]


def test_a_crontab_is_meant_in_the_time_zone_of_the_app_and_follows_its_summer_time() -> None:
    assert due_times(cron("30", "4"), "2026-03-27 12:00:00", 3) == [
        "2026-03-28 03:30:00",
        "2026-03-29 02:30:00",
        "2026-03-30 02:30:00",
    ]


def test_a_crontab_with_a_clock_of_its_own_is_still_told_the_time() -> None:
    schedule = schedules.crontab(
        minute="0", app=app, nowfun=lambda: datetime(1999, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))
    )
    timetable = Timetable(schedule)

    assert timetable.judge(ms("2026-06-01 00:00"), ms("2026-06-01 00:59"), "last", LATE_MS) == Verdict(
        "wait", ms("2026-06-01 01:00")
    )
    assert schedule.nowfun().year == 1999


def test_the_sun_rises_once_a_day() -> None:
    pytest.importorskip("ephem")
    rises = due_times(Timetable(schedules.solar("sunrise", 52.5, 13.4, app=app)), "2026-03-01 00:00:00", 60)

    days = [datetime.fromisoformat(rise).date() for rise in rises]
    assert days == [days[0] + timedelta(days=number) for number in range(60)]


class Odd(schedules.schedule):
    """Due when the second is odd; knows nothing about other moments."""

    def is_due(self, _last_run_at: datetime) -> tuple[bool, float]:
        return self.now().second % 2 == 1, 1.0


def test_a_class_that_decides_for_itself_is_asked() -> None:
    timetable = Timetable(Odd(1, app=app))
    last_ms = ms("2026-06-01 00:00:00")

    assert timetable.judge(last_ms, ms("2026-06-01 00:00:08"), "all", LATE_MS) == Verdict(
        "wait", ms("2026-06-01 00:00:09")
    )
    assert timetable.judge(last_ms, ms("2026-06-01 00:00:09"), "all", LATE_MS) == Verdict(
        "run", ms("2026-06-01 00:00:09")
    )


class Stranger:
    """Not one of Celery's classes at all; Celery asks no more of a schedule."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        return last_run_at.year < 2026, 5.0


def test_a_schedule_that_only_decides_is_asked_as_well() -> None:
    timetable, now_ms = Timetable(Stranger()), ms("2026-06-01 00:00:00")

    assert timetable.judge(ms("2025-06-01 00:00:00"), now_ms, "last", LATE_MS) == Verdict("run", now_ms)
    assert timetable.judge(now_ms, now_ms, "last", LATE_MS) == Verdict("wait", now_ms + 5000)
    assert "0x" not in timetable.fingerprint()


class FullMoon(schedules.BaseSchedule):
    """Due every 29 days from a certain one."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        first = datetime(2026, 1, 3, tzinfo=timezone.utc)
        count = (last_run_at - first) // timedelta(days=29) + 1
        return first + count * timedelta(days=29) - self.now()


def test_a_class_that_says_when_it_is_due_is_made_up_for_like_celerys_own() -> None:
    timetable = Timetable(FullMoon(app=app))

    assert [utc(at) for at in runs(timetable, ms("2026-01-03"), ms("2026-04-05"), "all")] == [
        "2026-02-01 00:00:00",
        "2026-03-02 00:00:00",
        "2026-03-31 00:00:00",
    ]
    assert [utc(at) for at in runs(timetable, ms("2026-01-03"), ms("2026-04-05"), "last")] == ["2026-03-31 00:00:00"]


@pytest.mark.parametrize("missed", POLICIES)
def test_what_is_not_due_yet_is_waited_for(missed: MISSED) -> None:
    verdict = cron("0", "5").judge(ms("2026-06-01 03:00:00"), ms("2026-06-02 02:59:59"), missed, LATE_MS)

    assert verdict == Verdict("wait", ms("2026-06-02 03:00:00"))


@pytest.mark.parametrize("missed", POLICIES)
def test_what_is_only_late_is_run_in_full(missed: MISSED) -> None:
    assert runs(every(10), ms("2026-06-01 00:00:00"), ms("2026-06-01 00:00:30"), missed) == [
        ms("2026-06-01 00:00:10"),
        ms("2026-06-01 00:00:20"),
        ms("2026-06-01 00:00:30"),
    ]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", []),
        ("last", ["2026-06-01 03:00:00"]),
        ("all", ["2026-06-01 01:00:00", "2026-06-01 02:00:00", "2026-06-01 03:00:00"]),
    ],
)
def test_what_nobody_was_there_for_is_up_to_the_setting(missed: MISSED, expected: list[str]) -> None:
    for timetable in (every(3600), cron("0")):
        found = runs(timetable, ms("2026-06-01 00:00:00"), ms("2026-06-01 03:10:00"), missed)
        assert [utc(at) for at in found] == expected


def test_the_latest_is_not_made_up_for_when_others_come_in_time() -> None:
    for missed, count in (("skip", 4), ("last", 4), ("all", 361)):
        assert len(runs(every(10), ms("2026-06-01 00:00:00"), ms("2026-06-01 01:00:10"), missed)) == count


def test_a_crontab_is_not_started_after_celerys_deadline() -> None:
    late = Celery("late", broker="memory://", set_as_current=False)
    late.conf.beat_cron_starting_deadline = 3600
    timetable = Timetable(schedules.crontab("0", app=late))

    found = runs(timetable, ms("2026-06-01 00:00:00"), ms("2026-06-01 05:10:00"), "all")
    assert [utc(at) for at in found] == ["2026-06-01 05:00:00"]


def test_an_interval_counts_from_now_when_the_clock_was_set_back() -> None:
    now_ms = ms("2026-06-01 00:00:00")

    assert every(10).judge(now_ms + 3_600_000, now_ms, "all", LATE_MS) == Verdict("move", now_ms)


def test_a_time_of_day_that_had_its_run_has_no_second_one_when_the_clock_was_set_back() -> None:
    verdict = cron("0").judge(ms("2026-06-01 10:00:00"), ms("2026-06-01 09:30:00"), "all", LATE_MS)

    assert verdict == Verdict("wait", ms("2026-06-01 11:00:00"))


def test_a_clock_that_was_days_ahead_was_wrong() -> None:
    now_ms = ms("2026-06-01 09:30:00")

    assert cron("0").judge(ms("2027-01-01 10:00:00"), now_ms, "all", LATE_MS) == Verdict("move", now_ms)


def test_something_that_is_never_due_again_is_not_asked_again() -> None:
    class Once(schedules.BaseSchedule):
        def remaining_estimate(self, _last_run_at: datetime) -> timedelta:
            return datetime(2026, 1, 3, tzinfo=timezone.utc) - self.now()

    timetable = Timetable(Once(app=app))
    assert runs(timetable, ms("2026-01-01"), ms("2026-01-04"), "all") == [ms("2026-01-03")]
    assert timetable.judge(ms("2026-01-03"), ms("2026-01-04"), "all", LATE_MS) == Verdict("wait", math.inf)


@pytest.mark.parametrize(
    ("timetable", "since", "until", "due"),
    [
        (every(60), "2026-06-01 00:00:30", "2026-06-01 00:00:00", "2026-06-01 00:00:30"),
        (every(60), "2026-06-01 00:00:30", "2026-06-01 00:05:00", "2026-06-01 00:04:30"),
        (cron("0"), "2026-06-01 00:00:30", "2026-06-01 00:05:00", "2026-06-01 01:00:00"),
        (cron("0"), "2026-06-01 00:00:00", "2026-06-01 00:05:00", "2026-06-01 00:00:00"),
        (cron("0"), "2026-06-01 00:00:00", "2026-06-01 04:05:00", "2026-06-01 04:00:00"),
    ],
)
def test_what_begins_at_a_certain_moment_owes_one_run_from_then_on(
    timetable: Timetable, since: str, until: str, due: str
) -> None:
    now_ms = ms("2026-06-01 05:00:00")

    assert utc(timetable.after(timetable.owing(ms(since), ms(until), now_ms), now_ms)) == due


def test_a_fingerprint_is_the_same_in_every_process_and_another_for_another_schedule() -> None:
    def made() -> list[str]:
        return [
            every(10).fingerprint(),
            every(11).fingerprint(),
            every(3600, relative=True).fingerprint(),
            cron("0").fingerprint(),
            cron("0", "4").fingerprint(),
            cron({30, 0}).fingerprint(),
            Timetable(FullMoon(app=app)).fingerprint(),
        ]

    assert made() == made()
    assert len(set(made())) == len(made())
    assert not any("0x" in fingerprint for fingerprint in made())


@given(
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=5),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=4),
    began=st.integers(0, 3 * 365 * 24 * 60),
    lasted=st.integers(0, 4 * 24 * 60),
)
def test_all_runs_are_found_and_the_last_of_them_is_the_last(
    minutes: set[int], hours: set[int], began: int, lasted: int
) -> None:
    timetable = Timetable(schedules.crontab(minutes, hours, app=app))
    last_ms = ms("2025-01-01") + began * 60_000
    now_ms = last_ms + lasted * 60_000 + LATE_MS + 1
    every_run = runs(timetable, last_ms, now_ms, "all")

    assert every_run == sorted(set(every_run))
    assert all(datetime.fromtimestamp(at / 1000, ZoneInfo("Europe/Berlin")).minute in minutes for at in every_run)
    assert runs(timetable, last_ms, now_ms, "last") == every_run[-1:]


@given(every_ms=st.integers(1, 10_000_000), count=st.integers(0, 300), rest=st.floats(0, 0.999))
def test_the_runs_of_an_interval_are_all_there(every_ms: int, count: int, rest: float) -> None:
    last_ms = ms("2026-01-01")
    now_ms = last_ms + int((count + rest) * every_ms)

    found = runs(every(every_ms / 1000), last_ms, now_ms, "all")
    assert found == [last_ms + number * every_ms for number in range(1, count + 1)]
    assert runs(every(every_ms / 1000), last_ms, now_ms, "last")[-1:] == found[-1:]
