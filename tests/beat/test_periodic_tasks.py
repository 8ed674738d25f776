"""django-celery-beat: its rows are the schedule, and follow what was run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.beat.beats import Beats
from tests.beat.conftest import MakeBeats
from tests.support.workers import ROOT

pytest.importorskip("django_celery_beat")

APPLICATION = "tests.beat.periodic.app"
CONFIGURED = {"from the configuration": {"task": "configured", "schedule": 1.0, "options": {"expires": 60}}}


class Project:
    """A Django project whose periodic tasks a beat runs."""

    def __init__(self, beats: Beats, url: str, **env: str) -> None:
        self.beats = beats
        self.env = {
            **env,
            "DJANGO_SETTINGS_MODULE": "tests.beat.periodic.settings",
            "TEST_DJANGO_DATABASE": url,
        }
        self._shell = subprocess.Popen(
            [sys.executable, "-m", "tests.beat.periodic.shell"],
            cwd=ROOT,
            env={**os.environ, **beats.fleet.env, **self.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.run("call_command('migrate', verbosity=0)")
        self.run("IntervalSchedule(pk=1000, every=1, period='seconds').save()")

    def run(self, expression: str) -> Any:
        """Evaluate an expression over the models."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{expression}\n")
        self._shell.stdin.flush()
        return json.loads(self._shell.stdout.readline())

    def add(self, name: str, fields: str = "interval_id=1000") -> None:
        """Add a periodic task that sends a task of the same name."""
        self.run(f"PeriodicTask(name={name!r}, task={name!r}, {fields}).save()")

    def change(self, name: str, **fields: Any) -> None:
        """Change a periodic task as the admin does: its signals are sent."""
        self.run(f"change({name!r}, **{fields!r})")

    def row(self, name: str) -> dict[str, Any]:
        """Return the fields of a periodic task."""
        [found] = self.run(f"list(PeriodicTask.objects.filter(name={name!r}).values())")
        return dict(found)

    def beat(self, name: str = "first") -> Any:
        """Start a beat and wait until it leads."""
        return self.beats.start_leading(name, env=self.env, application=APPLICATION)

    def close(self) -> None:
        """End the shell."""
        self._shell.communicate(timeout=120)


@pytest.fixture
def make_project(database_url: str, make_beats: MakeBeats) -> Iterator[Callable[..., Project]]:
    with ExitStack() as stack:

        def make(schedule: Any = CONFIGURED, **env: str) -> Project:
            project = Project(make_beats(database_url, schedule=schedule), database_url, **env)
            stack.callback(project.close)
            return project

        yield make


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    return make_project()


def test_no_process_is_forked_while_rows_are_read(project: Project) -> None:
    """Django's connection to SQLite is none of ours, and a child would inherit what it has locked."""
    assert project.run("forks.happened()") == ["read", "forked"]


def test_rows_are_run_and_keep_count(project: Project) -> None:
    project.add("a", "interval_id=1000, args='[1]', kwargs='{\"x\": 2}', headers='{\"h\": 3}', priority=5")
    beat = project.beat()
    numbers = project.beats.wait_for_runs(3, "a")
    beat.signal(signal.SIGTERM)
    assert beat.wait() == 0

    runs = [run for run in project.beats.runs.all() if run.task == "a"]
    row = project.row("a")
    assert row["total_run_count"] == len(runs)
    assert row["last_run_at"][:19] == runs[-1].due[:19].replace("T", " ")
    assert numbers == sorted(set(numbers))
    assert runs[0].headers["h"] == 3
    assert runs[0].headers["periodic_task_name"] == "a"
    assert runs[0].priority == 5
    assert runs[0].body[:2] == [[1], {"x": 2}]


def test_the_configuration_is_written_into_rows_which_the_admin_may_disable(project: Project) -> None:
    project.beat()
    project.beats.wait_for_runs(1, "configured")
    assert project.row("from the configuration")["expire_seconds"] == 60

    project.change("from the configuration", enabled=False)
    project.add("b")
    project.beats.wait_for_runs(1, "b")
    count = len(project.beats.runs.numbers("configured"))
    project.beats.wait_for_runs(4, "b")
    assert len(project.beats.runs.numbers("configured")) == count


def test_rows_may_come_change_and_go_while_the_beat_runs(project: Project) -> None:
    project.beat()
    project.add("a", "interval=IntervalSchedule.objects.get_or_create(every=1, period='days')[0]")
    project.add("b")
    project.beats.wait_for_runs(2, "b")
    assert project.beats.runs.numbers("a") == []

    project.run("PeriodicTask.objects.get(name='b').delete()")
    project.change("a", interval_id=1000)
    project.beats.wait_for_runs(2, "a")
    count = len(project.beats.runs.numbers("b"))
    project.beats.wait_for_runs(5, "a")
    assert len(project.beats.runs.numbers("b")) == count


def test_what_is_to_be_run_once_is_run_once_and_disabled(project: Project) -> None:
    project.add("a", "interval_id=1000, one_off=True")
    project.add("b", "clocked=ClockedSchedule.objects.create(clocked_time=now()), one_off=True")
    project.beat()
    for name in "ab":
        project.beats.wait_until(lambda name=name: not project.row(name)["enabled"], what=f"{name} is disabled")
    project.beats.wait_for_runs(len(project.beats.runs.numbers("configured")) + 2, "configured")
    for name in "ab":
        assert len(project.beats.runs.numbers(name)) == 1

    project.change("a", enabled=True)
    project.beats.wait_for_runs(2, "a")
    project.beats.wait_until(lambda: not project.row("a")["enabled"])
    assert len(project.beats.runs.numbers("a")) == 2


def test_a_start_and_an_end_are_kept_to(project: Project) -> None:
    project.add("late", "interval_id=1000, start_time=now() + timedelta(days=1)")
    project.add("over", "interval_id=1000, expires=now() - timedelta(days=1)")
    project.add("soon", "interval_id=1000, start_time=now() + timedelta(seconds=20)")
    project.beat()
    project.beats.wait_for_runs(2, "soon")

    assert project.beats.runs.numbers("late") == project.beats.runs.numbers("over") == []
    assert not project.row("over")["enabled"]
    start = project.row("soon")["start_time"]
    first = next(run for run in project.beats.runs.all() if run.task == "soon")
    late = datetime.fromisoformat(first.due) - datetime.fromisoformat(start)
    assert abs(late) <= timedelta(milliseconds=1), "the database counts in those"


def test_a_takeover_repeats_nothing_and_makes_up_for_counts_that_got_lost(project: Project) -> None:
    project.add("a")
    first = project.beat()
    second = project.beats.start("second", env=project.env, application=APPLICATION)
    project.beats.wait_for_runs(2, "a")
    project.run("PeriodicTask.objects.filter(name='a').update(total_run_count=0)")
    first.signal(signal.SIGKILL)
    project.beats.wait_until(lambda: project.beats.leads(second))
    project.beats.wait_for_runs(len(project.beats.runs.numbers("a")) + 2, "a")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0

    assert project.beats.runs.twice() == []
    assert project.row("a")["total_run_count"] == len(project.beats.runs.numbers("a"))


def test_a_project_without_time_zones_is_served_as_well(make_project: Callable[..., Project]) -> None:
    project = make_project(TEST_USE_TZ="0")
    project.add("a")
    project.beat()
    project.beats.wait_for_runs(3, "a")

    assert project.row("a")["total_run_count"] >= 2


def test_what_the_rows_cannot_hold_is_run_from_the_configuration(make_project: Callable[..., Project]) -> None:
    project = make_project({"often": {"task": "often", "schedule": 0.5, "options": {"countdown": 3600}}})
    project.beat()
    schedules = project.beats.fleet.store.schedules
    project.beats.wait_until(
        lambda: "often" in (known := schedules.load("application")) and known["often"].total_runs > 1
    )

    assert project.run("PeriodicTask.objects.count()") == 0


def test_a_row_that_cannot_be_read_does_not_stand_in_the_way(project: Project) -> None:
    project.add("broken", "interval_id=1000, args='['")
    project.add("a")
    project.beat()
    project.beats.wait_for_runs(2, "a")
    assert project.beats.runs.numbers("broken") == []


def test_the_broker_may_be_named_by_djangos_alias(make_project: Callable[..., Project]) -> None:
    project = make_project(TEST_BROKER="atomic+django://default")
    project.add("a")
    project.beat()
    project.beats.wait_for_runs(3, "a")

    assert project.beats.runs.twice() == []
