"""Celery's scheduler, as ``celery beat -S atomic`` runs it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from typing import Any

from celery import beat
from celery.utils.log import get_logger
from kombu.common import ignore_errors
from kombu.utils.objects import cached_property

from atomic_celery import errors
from atomic_celery.beat import periodic_tasks
from atomic_celery.beat.conductor import Conductor
from atomic_celery.beat.entries import Configured, Entry, Source
from atomic_celery.term import Term
from atomic_celery.transport import broker
from atomic_celery.transport.transport import Transport

logger = get_logger(__name__)

_AGAIN_AFTER_S = 1.0
_FAILURES: tuple[type[BaseException], ...] = (errors.StoreError, *Transport.connection_errors)


class Scheduler(beat.Scheduler):
    """Runs the schedule together with any number of other beats, each due run exactly once.

    What it knows is in the broker's database: ``--schedule`` and its file mean nothing to it.
    """

    max_interval = 5

    def __init__(self, app: Any, **options: Any) -> None:
        self._conductor: Conductor | None = None
        self._broker: broker.Broker | None = None
        self._working = self._waits = False
        super().__init__(app, **options)

    def setup_schedule(self) -> None:
        """Read the configuration, and see that the database has the tables.

        Raises:
            SystemExit: It has not, a setting is wrong, or the broker is none of ours; says what to do.
        """
        if not isinstance(self.connection.transport, Transport):
            raise SystemExit(
                f"the scheduler 'atomic' needs a broker_url that starts with atomic+, not {self.connection.as_uri()}"
            )
        try:
            with self._in_time():
                self._borrow().connect()
        except (errors.ConfigError, errors.SchemaMismatch) as error:
            raise SystemExit(str(error)) from error
        except errors.StoreError as error:
            self._wait(error)
        self.update_from_dict(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)

    def tick(self, *_: Any, **__: Any) -> float:
        """Run what is due, if this beat leads; return seconds until the next tick."""
        with self._at_work():
            try:
                conductor, _ = self._open(), self.producer
                again_s = conductor.turn()
                self._waits = False
                return min(self.max_interval, again_s)
            except errors.StaleTerm as error:
                logger.warning("%s", error)
                again_s = 0.0
            except errors.SchemaMismatch:
                raise
            except _FAILURES as error:
                self._wait(error)
                again_s = _AGAIN_AFTER_S
            self._begin_afresh()
            return again_s

    def close(self) -> None:
        """Let another beat lead at once, and let go of the database."""
        if self._working:
            return  # called by a signal in the middle of a tick; Celery calls once more when that has ended
        conductor, self._conductor = self._conductor, None
        if conductor is not None:
            ignore_errors(self.connection, conductor.close)
        self._drop_producer()
        if self._broker is not None:
            broker.give_back(self._broker)
            self._broker = None
        super().close()

    @cached_property
    def producer(self) -> Any:
        """Connect what publishes: before there is a transaction, and never again in the middle of one."""
        with self._in_time():
            self.connection.connect()
        return self.app.amqp.Producer(self.connection.channel(), auto_declare=False)

    @property
    def info(self) -> str:
        """Say where the schedule is, for the banner."""
        return f"    . database -> {self.app.connection_for_write().as_uri()}"

    def _open(self) -> Conductor:
        if self._conductor is None:
            held = self._borrow()
            name = held.settings.beat_name or self.app.main or "celery"
            term = Term(held.store, f"beat/{name}", _holder())
            self._conductor = Conductor(held.store, term, name, self._source(), self._publish)
        return self._conductor

    def _borrow(self) -> broker.Broker:
        """Return the database; what `producer` publishes through is the same."""
        if self._broker is None:
            self._broker = broker.borrow(self.connection)
        return self._broker

    def _in_time(self) -> AbstractContextManager[None]:
        store = self._borrow().store
        return store.deadline(store.settings.statement_timeout_s)

    def _source(self) -> Source:
        if periodic_tasks.installed():
            return periodic_tasks.PeriodicTasks(self.app, self.schedule)
        return Configured(self.schedule)

    def _publish(self, entry: Entry, due_ms: int, task_id: str) -> None:
        """Publish a run's message; joins the transaction of this thread, which has the same store."""
        scheduled = entry.scheduled
        options = {"task_id": task_id, **scheduled.options, "retry": False}
        options["headers"] = {**(options.get("headers") or {}), "atomic_due": _iso(due_ms)}
        ticket = self.Entry(
            name=scheduled.name,
            task=scheduled.task,
            schedule=scheduled.schedule,
            args=scheduled.args,
            kwargs=scheduled.kwargs,
            options=options,
            app=self.app,
        )
        logger.info("Scheduler: Sending due task %s (%s)", ticket.name, ticket.task)
        try:
            self.apply_async(ticket, producer=self.producer, advance=False)
        except Exception:
            self._drop_producer()  # what it declared in this transaction is undone with it
            raise

    def _wait(self, error: BaseException) -> None:
        """Say once that the database is away."""
        if not self._waits:
            logger.error("the schedule waits for the database: %s", error)
        self._waits = True

    def _begin_afresh(self) -> None:
        """Trust nothing that was read, or declared in a transaction that may have been undone."""
        if self._conductor is not None:
            self._conductor.forget()
        self._drop_producer()

    def _drop_producer(self) -> None:
        self.__dict__.pop("producer", None)
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            ignore_errors(connection, connection.release)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self._working = True
        try:
            yield
        finally:
            self._working = False


def _holder() -> str:
    """Name this beat, so that people find it and no other beat ever has the same name."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
