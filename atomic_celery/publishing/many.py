"""Many messages a statement: by a call, in a block, and for every group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from celery.app import app_or_default

from atomic_celery import mailbag, refusals, sending
from atomic_celery.mailbag import Mailbag
from atomic_celery.publishing.stencil import Stencils

if TYPE_CHECKING:
    from celery import Celery
    from celery.canvas import Signature
    from celery.result import AsyncResult


def publish_many(signatures: Iterable[Signature], *, app: Celery | None = None) -> list[AsyncResult[Any]]:
    """Send each signature as its ``apply_async()`` would, a thousand messages to a statement.

    Tasks that differ in nothing but their arguments are many times as fast as one by one. Routers that are code,
    receivers of publishing signals and tasks with an ``apply_async`` of their own are heeded, and cost their time.

    Atomicity: each statement by itself, or all in the transaction that is open here (`publishing_in`, Django's).

    Args:
        signatures: Tasks, and canvases too. Read as they are sent: a generator of millions is fine.
        app: Default: the current app.

    Returns:
        A result for each, in order; where a task's key was taken, that of the task which has it.

    Raises:
        kombu.exceptions.OperationalError: The database is away. Messages of earlier statements are stored.
    """
    app = app_or_default(app)
    stencils = Stencils(app)
    with refusals.noting() as refused, bulk_as_it_comes(app, lazily=False):
        results = [stencils.publish(signature) for signature in signatures]
    if not refused:
        return results
    holders = refusals.holders(refused)
    return [sending.joined(result, holders.get(result.id, result.id)) for result in results]


def bulk(app: Celery | None = None) -> AbstractContextManager[None]:
    """Collect what tasks are sent in the block and store their messages at its end, a thousand to a statement.

    Nothing is sent when the block raises. A block within a block belongs to the outer one, and what is sent in a
    transaction or savepoint that begins within the block belongs to that and does not wait. Other brokers than this
    package's send as they always do.

    Args:
        app: Whose retry policy counts. Default: the current app.

    Raises:
        kombu.exceptions.OperationalError: At the end: the database is away. Statements before the last are done.
    """
    return _collecting(app_or_default(app), Mailbag())


def bulk_as_it_comes(app: Celery, *, lazily: bool) -> AbstractContextManager[None]:
    """Collect likewise, but store a thousand messages as soon as there are so many; one that comes slowly at once."""
    return _collecting(app, Mailbag(brims_at=mailbag.A_STATEMENT, lazily=lazily))


@contextmanager
def _collecting(app: Celery, bag: Mailbag) -> Iterator[None]:
    if mailbag.current() is not None:
        yield
        return
    with mailbag.collecting(bag):
        yield
    if any(bag.waiting.values()):
        _store(app, bag)


def _store(app: Celery, bag: Mailbag) -> None:
    """Empty the bag with the retries that *app* has for every other message."""
    with app.producer_or_acquire() as producer:
        connection = producer.connection
        empty = bag.empty
        if app.conf.task_publish_retry:
            empty = connection.ensure(producer, empty, **app.conf.task_publish_retry_policy)
        with connection._reraise_as_library_errors():
            empty()
