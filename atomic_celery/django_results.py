"""The result backend ``atomic+django-db``: the rows of django-celery-results, written under the fence.

Where those rows are in the database of the messages, they are committed with the end of the task's claim. Where they
are in another one, they are written as django-celery-results does it, and the task is settled after that.
"""

from __future__ import annotations

import json
import weakref
from functools import cached_property
from typing import Any

from celery import maybe_signature
from celery._state import get_current_task
from celery.exceptions import ChordError
from celery.exceptions import TimeoutError as TooLate
from celery.result import allow_join_result

from atomic_celery import current, django_connection, errors, groups
from atomic_celery.results import chords
from atomic_celery.results.closing import Closing
from atomic_celery.results.place import Place
from atomic_celery.store import Store
from atomic_celery.store.django_results import (
    LOCAL,
    UTC,
    CounterClosed,
    CounterGrown,
    CounterOpened,
    CounterPart,
    TaskRow,
)
from atomic_celery.transport import continuing

try:
    from django_celery_results import models
    from django_celery_results.backends import database
except Exception as error:
    raise errors.ConfigError(
        f"result_backend = \"atomic+django-db\" cannot be used: {error}; install 'atomic_celery[django]', set "
        "DJANGO_SETTINGS_MODULE, and add 'django_celery_results' to INSTALLED_APPS"
    ) from error

Base: Any = database.DatabaseBackend
ChordCounter: Any = models.ChordCounter  # type: ignore[attr-defined]  # unknown to its stub


UNKNOWN = 2**30
"""How many parts a chord has whose header has not come to its end: more than can end meanwhile."""


class Backend(Closing, Base):  # type: ignore[misc]
    """``result_backend = "atomic+django-db"``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy_headers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    @cached_property
    def place(self) -> Place:
        """The database of the messages.

        Raises:
            ConfigError: The broker is none of ours.
        """
        place = Place(self.app, None)
        weakref.finalize(self, place.close).atexit = False
        return place

    @property
    def store(self) -> Store:
        """Its tables."""
        return self.place.store

    @cached_property
    def is_at_home(self) -> bool:
        """Whether its rows are where the messages are."""
        try:
            return self.place.is_at(f"django://{django_connection.written_to(models.TaskResult)}")
        except errors.ConfigError:
            return False

    def as_uri(self, include_password: bool = False) -> str:  # noqa: ARG002
        """Return its URL for people to read."""
        return "atomic+django-db"

    def _outbox(self) -> Any:
        return super()._outbox() if self.is_at_home else None

    # What a task came to

    def _store_result(
        self,
        task_id: str,
        result: Any,
        status: str,
        traceback: Any = None,
        request: Any = None,
        using: str | None = None,
    ) -> Any:
        if not self.is_at_home or using is not None:
            return super()._store_result(task_id, result, status, traceback, request, using)
        row = self._row(task_id, result, status, traceback, request)
        if self._put_at_the_end(row):
            return result
        running = current.running() or continuing.of_request(get_current_task())
        if running is None or running.task_id != task_id:
            return super()._store_result(task_id, result, status, traceback, request)
        if not self.store.django_results.record_held(row, (running.message_id, running.fence)):
            raise errors.LeaseLost(running.message_id, running.fence, doing=f"recording its state {status}")
        return result

    def _row(self, task_id: str, result: Any, status: str, traceback: Any, request: Any) -> TaskRow:
        """Return what `DatabaseBackend` would store, in the columns that it would store it in."""
        content_type, content_encoding, encoded = self.encode_content(result)
        about = {**self._get_meta_from_request(request), "children": self.current_task_children(request)}
        columns = {
            "task_id": task_id,
            "status": status,
            "content_type": content_type,
            "content_encoding": content_encoding,
            "result": encoded,
            "traceback": traceback,
            "meta": self.encode_content(about)[2],
            **self._get_extended_properties(request, traceback),
        }
        zone = UTC if django_connection.keeps_utc() else LOCAL
        return TaskRow(zone=zone, **{name: _text(value) for name, value in columns.items()})

    # Waiting

    def wait_for(self, task_id: str, *args: Any, on_interval: Any = None, **options: Any) -> Any:
        """Wait until it is known what a task came to, and look once more at what it depends on.

        Between two looks a part may have failed and its chord with it; whoever waits is told of the part.
        """
        meta = super().wait_for(task_id, *args, on_interval=on_interval, **options)
        if on_interval:
            on_interval()
        return meta

    # Chords

    def apply_chord(self, header_result_args: Any, body: Any, **options: Any) -> None:
        """Begin to count the parts of a chord whose header is about to be published."""
        group_id, results = header_result_args[:2]
        if chords.is_lazy(results):
            self._lazy_headers[group_id] = results
            self._open_counter(CounterOpened(group_id, "[]", UNKNOWN))
        elif self._closes:
            parts = _parts(self.app.GroupResult(*header_result_args))
            self.put(CounterOpened(group_id, json.dumps(parts), body.get("chord_size", None) or len(parts)))
        else:
            super().apply_chord(header_result_args, body, **options)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Say how many parts a chord has whose header was a generator, and which; its last one is not sent yet."""
        if self._lazy_headers.pop(group_id, None) is not None:
            grown = CounterGrown(group_id, json.dumps(_parts(groups.parts())), chord_size - UNKNOWN)
            if not self._put_at_the_end(grown):
                _grow_counter(grown)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Say that a chord has one part more, which its part that runs is about to publish."""
        grown = CounterGrown(chord_id, json.dumps(_parts([result])), 1)
        if (box := self._outbox()) is None:
            _grow_counter(grown)
        else:
            box.own_ids.add(result.id)  # that part must not end before it is counted that there is one more
            box.entries.append(grown)

    def _open_counter(self, opened: CounterOpened) -> None:
        if not self._put_at_the_end(opened):
            ChordCounter.objects.create(group_id=opened.group_id, sub_tasks=opened.sub_tasks, count=opened.count)

    @property
    def _closes(self) -> bool:
        """Whether what is written here goes along with the end of the task that runs."""
        box = self._outbox()
        return box is not None and box.closing

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        """Count a part of a chord."""
        if not self._closes:
            super().on_chord_part_return(request, state, result, **options)
        elif request.id and request.group:
            body = maybe_signature(request.chord, app=self.app)
            self.put(CounterPart(request.group, chords.finisher(self, request.group, body)))

    def join_chord(self, group_id: str, structure: Any) -> tuple[str, list[Any]] | None:  # noqa: ARG002
        """Return a part of a full chord, and what all came to; None: the chord's end has been dealt with.

        Raises:
            ChordError: One of them failed.
        """
        counter = ChordCounter.objects.filter(group_id=group_id).first()
        if counter is None:
            return None
        header = counter.group_result(app=self.app)
        try:
            with allow_join_result():
                return header.results[-1].id, header.join(self.app.conf.result_chord_join_timeout, propagate=True)
        except TooLate as error:
            raise ChordError(f"Some parts of {group_id} have stored no results: do they ignore them?") from error
        except Exception as error:
            culprit = next(part for part in header.results if part.failed())
            raise ChordError(f"Dependency {culprit.id} raised {error!r}") from error

    def close_chord(self, group_id: str) -> None:
        """Let the chord be forgotten with the end of the task that dealt with its end."""
        self.put(CounterClosed(group_id))

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Whether the same call may succeed later."""
        return (isinstance(exc, errors.StoreError) and exc.transient) or bool(super().exception_safe_to_retry(exc))


def _parts(results: Any) -> list[Any]:
    return [result.as_tuple() for result in results]


def _grow_counter(grown: CounterGrown) -> None:
    """Count more parts of a chord, on Django's own connection, as its counter was made."""
    with django_connection.writing(ChordCounter):
        mine = ChordCounter.objects.filter(group_id=grown.group_id)
        # First, because SQLite does not let a transaction write that has read what was changed meanwhile.
        mine.update(count=django_connection.field("count") + grown.more)
        mine.update(sub_tasks=json.dumps(json.loads(mine.get().sub_tasks) + json.loads(grown.sub_tasks)))


def _text(value: Any) -> Any:
    """Return *value* as PostgreSQL takes it."""
    return value.replace("\x00", "\\x00") if isinstance(value, str) else value
