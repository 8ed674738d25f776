"""Results in the tables of django-celery-results: Celery's canvas once more, and the rows that are left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import ChordError

from tests.results.test_canvas import *  # noqa: F403
from tests.results.test_canvas import WAIT_S, Sign
from tests.support.workers import Fleet

pytestmark = pytest.mark.parametrize("serving", ["sqlite rows", "postgresql rows"], indirect=True)

TASK = "tests.support.application"


def _row(task_id: str) -> Any:
    from django_celery_results.models import TaskResult

    return TaskResult.objects.get(task_id=task_id)


@pytest.fixture(autouse=True)
def _every_chord_is_closed(serving: Fleet) -> Iterator[None]:
    yield
    from django_celery_results.models import ChordCounter

    serving.wait_until(lambda: not ChordCounter.objects.exists() and not serving.unfinished())


# What these tables cannot say


def test_a_part_that_has_no_row_lets_the_chord_fail(s: Sign) -> None:
    header = [s("echo", 1).set(ignore_result=True), s("echo", 2)]
    error = chord(header, s("whole")).delay().get(timeout=WAIT_S, propagate=False)
    assert type(error) is ChordError
    assert "have stored no results" in str(error)


test_a_part_whose_result_is_ignored_counts_all_the_same = None
test_results_of_a_group_come_as_they_are_ready = None  # its backend has no `iter_native` either


# Rows


def test_a_row_says_what_django_celery_results_would(serving: Fleet, s: Sign) -> None:
    from django.utils import timezone

    before = timezone.now()
    result = chain(s("add", 1, 2), s("add", 3)).delay()
    result.get(timeout=WAIT_S)
    row = _row(result.parent.id)
    assert (row.status, row.content_type, row.content_encoding) == ("SUCCESS", "application/json", "utf-8")
    assert json.loads(row.result) == 3
    assert json.loads(row.meta) == {"children": [[[result.id, None], None]]}
    assert (row.task_name, row.worker) == (f"{TASK}.add", "w@test")
    assert (json.loads(row.task_args), json.loads(row.task_kwargs)) == ("(1, 2)", "{}")
    assert before.timestamp() - 0.001 < row.date_started.timestamp() <= row.date_done.timestamp()
    assert row.date_created <= row.date_started
    assert row.date_done <= timezone.now()
    assert serving.app.AsyncResult(result.parent.id).children == [result]


def test_a_failure_s_row_has_its_traceback(s: Sign) -> None:
    result = s("fail").delay()
    result.get(timeout=WAIT_S, propagate=False)
    row = _row(result.id)
    assert row.status == "FAILURE"
    assert "ValueError: on purpose" in row.traceback
    assert json.loads(row.result)["exc_message"] == ["on purpose"]


def test_a_task_of_the_schedule_says_so(s: Sign) -> None:
    result = s("add", 1, 2).apply_async(periodic_task_name="each night", headers={"periodic_task_name": "each night"})
    result.get(timeout=WAIT_S)
    assert _row(result.id).periodic_task_name == "each night"


def test_the_same_row_as_django_celery_results_itself(serving: Fleet) -> None:
    """Outside of a task it is written by the same code; inside, the columns are those."""
    from celery.app.task import Context
    from django.forms.models import model_to_dict

    rows = []
    for backend in ("atomic+django-db", "django-db"):
        app = serving._app(results=True)
        app.conf.update(result_backend=backend, result_extended=True)
        request = {"id": backend, "task": "t", "args": (1,), "kwargs": {"k": 2}, "hostname": "h", "errbacks": None}
        app.backend.mark_as_failure(backend, KeyError("x"), "the traceback", request=Context(request, chord=None))
        rows.append(model_to_dict(_row(backend), exclude=["id", "task_id"]))
    assert rows[0] == rows[1]


def test_steps_are_seen_and_belong_to_the_holder(serving: Fleet, s: Sign) -> None:
    result = s("progress", 1, str(serving.directory)).delay()
    serving.wait_until(lambda: result.state == "PROGRESS")
    assert _row(result.id).result == '{"step": 0}'
    serving.open_gate("go-0")
    assert result.get(timeout=WAIT_S) == "done"


def test_a_chord_begun_with_django_celery_results_is_finished(serving: Fleet, s: Sign) -> None:
    before = serving._app(results=True)
    before.conf.result_backend = "django-db"
    parts = [before.signature(f"{TASK}.add", args=(number, 1)) for number in range(3)]
    result = chord(parts, before.signature(f"{TASK}.total"), app=before).delay()
    assert serving.app.AsyncResult(result.id).get(timeout=WAIT_S) == 6
