"""How a chord ends: its last part publishes a message, and whoever runs that calls the body.

The message is inserted by the transaction that counted the last part, and ends in one transaction with the body's: so
there is one body, whoever dies when.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from celery import canvas, states
from celery.canvas import group, maybe_signature
from celery.exceptions import ChordError, NotRegistered, Reject
from celery.result import GroupResult, result_from_tuple
from celery.utils import functional

from atomic_celery import current, errors, outbox
from atomic_celery.results import encoding
from atomic_celery.store.records import NewMessage
from atomic_celery.store.results import LAST_PLACE, ChordPart, Finisher

if TYPE_CHECKING:
    from atomic_celery.results.backend import Backend
    from atomic_celery.store import Store

logger = logging.getLogger(__name__)

FINISH = "atomic.finish_chord"
"""The task that calls a chord's body."""

A_BATCH = 1000


class Counting(Protocol):
    """A result backend that counts the parts of chords where the messages are."""

    app: Any
    store: Store

    def join_chord(self, group_id: str, structure: Any) -> tuple[str, list[Any]] | None:
        """Return a part of a full chord, and what all came to; None: the chord's end has been dealt with.

        Raises:
            ChordError: One of them failed.
        """
        ...

    def close_chord(self, group_id: str) -> None:
        """Let the chord be forgotten with the end of the task that dealt with its end."""
        ...

    def chord_error_from_stack(self, callback: Any, exc: Exception) -> Any:
        """Let a chord's body fail."""
        ...


_Chord: Any = canvas._chord  # type: ignore[attr-defined]  # unknown to its stub
_Chain: Any = canvas._chain
_Lazy: Any = functional._regen  # type: ignore[attr-defined]  # the same


def register(app: Any) -> None:
    """Make the finishing task known to *app*. Safe to repeat."""
    if FINISH in app.tasks:
        return

    @app.task(
        name=FINISH,
        bind=True,
        shared=False,
        lazy=False,
        ignore_result=True,
        acks_late=True,
        send_events=False,
        track_started=False,
        typing=False,
    )  # type: ignore[untyped-decorator]
    def finish_chord(self: Any, group_id: str, body: Any, structure: Any = None) -> None:
        try:
            finish(self.app.backend, group_id, body, structure)
        except errors.StoreError as error:
            raise Reject(error, requeue=True) from error


def part_of(request: Any, state: str, result: str, keep_ms: int | None) -> ChordPart:
    """Return the part of a chord that *request* was."""
    place = request.group_index
    return ChordPart(request.group, request.id, LAST_PLACE if place is None else float(place), state, result, keep_ms)


def finisher(backend: Counting, group_id: str, body: Any, structure: Any = None) -> Finisher:
    """Return the message that finishes a chord."""
    app = backend.app
    register(app)
    first = _first_task(body)
    queue, priority = _queue_of(app, first)
    with outbox.collecting(backend.store.journal) as entries:
        app.tasks[FINISH].apply_async(
            (group_id, dict(body), structure),
            queue=queue,
            priority=priority,
            add_to_parent=False,
            root_id=first.options.get("root_id"),
        )
    [message, *_] = [entry for entry in entries if isinstance(entry, NewMessage)]
    return Finisher(queue if isinstance(queue, str) else queue.name, message)


def structure(app: Any, header_result_args: Any) -> Any:
    """Return the shape of a header in which groups are nested; None for a flat one, whose parts are in order."""
    group_id, results = header_result_args[:2]
    if is_lazy(results):
        return None
    header = app.GroupResult(group_id, results, *header_result_args[2:])
    return header.as_tuple() if any(isinstance(each, GroupResult) for each in header.results) else None


def is_lazy(results: Any) -> bool:
    """Whether a header is a generator, whose parts are sent while it makes them."""
    return isinstance(results, _Lazy)


def save_structure(backend: Backend, header_result_args: Any) -> None:
    """Keep the shape of a header for whoever finishes its chord by hand."""
    shape = structure(backend.app, header_result_args)
    if shape is not None:
        backend.save_group(header_result_args[0], result_from_tuple(shape, app=backend.app))


def _first_task(signature: Any) -> Any:
    """Return the task of a body that is run first, or one of them."""
    while True:
        tasks = signature.tasks if isinstance(signature, (_Chord, _Chain, group)) else ()
        tasks = getattr(tasks, "tasks", tasks)
        if not tasks:
            return signature
        signature = maybe_signature(tasks[0], app=signature.app)


def _queue_of(app: Any, task: Any) -> tuple[Any, Any]:
    """Return the queue and the priority of *task*: whoever can run it can finish the chord."""
    try:
        type_ = task.type
    except NotRegistered:
        type_ = None
    queue = task.options.get("queue", getattr(type_, "queue", None))
    if queue is None:
        queue = app.amqp.router.route(dict(task.options), task.task, task.args, task.kwargs)["queue"]
    return queue, task.options.get("priority", getattr(type_, "priority", None))


def finish(backend: Counting, group_id: str, body: Any, structure: Any) -> None:
    """Call the body of a full chord with what its parts came to, or let it fail; and close the chord.

    Atomicity: all that it publishes and records goes along with the end of the task that runs here, or else is one
        transaction. A second time does nothing.
    """
    running = current.running()
    if running is not None and running.outbox is not None:
        with running.outbox.closed():
            _finish(backend, group_id, body, structure)
        return
    with outbox.collecting(backend.store.journal) as entries:
        _finish(backend, group_id, body, structure)
    with backend.store.transaction("finish"):
        outbox.deliver(backend.store, entries)


def finish_by_hand(backend: Backend, group_id: str, request: Any) -> None:
    """Finish a chord whose messages are in another database than its parts: one after the other."""
    callback = maybe_signature(request.chord, app=backend.app)
    saved = GroupResult.restore(group_id, app=backend.app, backend=backend)
    _call(backend, group_id, callback, None if saved is None else saved.as_tuple())
    backend.store.results.close_chords([group_id])


def _finish(backend: Counting, group_id: str, body: Any, structure: Any) -> None:
    _call(backend, group_id, maybe_signature(body, app=backend.app), structure)
    backend.close_chord(group_id)


def _call(backend: Counting, group_id: str, callback: Any, structure: Any) -> None:
    try:
        full = backend.join_chord(group_id, structure)
    except ChordError as error:
        logger.exception("Chord %r raised: %r", group_id, error)
        backend.chord_error_from_stack(callback, error)
        return
    if full is None:
        return
    part, results = full
    try:
        callback.apply_async((results,), parent_id=part, **_root_of(callback))
    except errors.StoreError:
        raise
    except Exception as error:
        logger.exception("Chord callback for %r raised: %r", group_id, error)
        backend.chord_error_from_stack(callback, ChordError(f"Callback error: {error!r}"))


def _root_of(callback: Any) -> dict[str, Any]:
    root_id = callback.options.get("root_id")
    return {"root_id": root_id} if root_id else {}


def joined(backend: Backend, parts: list[tuple[str, str, str]], structure: Any) -> list[Any]:
    """Return what the parts came to, in the order and the shape of the header.

    Raises:
        ChordError: One of them failed.
    """
    results = [(task_id, _value(backend, task_id, status, text)) for task_id, status, text in parts]
    if structure is None:
        return [result for _, result in results]
    by_id = dict(results)
    header: Any = result_from_tuple(structure, app=backend.app)
    if set(by_id) != set(_leaves(header)):
        return [result for _, result in results]
    return [_shaped(each, by_id) for each in header.results]


def _value(backend: Backend, task_id: str, status: str, text: str) -> Any:
    value = backend.decode(encoding.from_text(text))
    if status in states.EXCEPTION_STATES:
        value = backend.exception_to_python(value)
    if status in states.PROPAGATE_STATES:
        error = ChordError(f"Dependency {task_id} raised {value!r}")
        if isinstance(value, Exception):
            error.__cause__ = value
        raise error
    return value


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, GroupResult):
        for each in node.results or ():
            yield from _leaves(each)
    else:
        yield node.id


def _shaped(node: Any, by_id: dict[str, Any]) -> Any:
    return [_shaped(each, by_id) for each in node.results or ()] if isinstance(node, GroupResult) else by_id[node.id]
