"""Where a task's body ends: what is published from then on is part of the task's end.

A process that the body has forked ends there, too. It would go on as a second pool process under the same name, and
each would take away from the other what the host says.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from atomic_celery import current
from atomic_celery.outbox import Outbox

logger = logging.getLogger(__name__)

ON_SUCCESS = "on_success"
"""What a task's `atomic_publish` is whose messages are to go out only if it succeeds."""


def mark_all(app: Any) -> None:
    """Mark the bodies of all tasks of *app* in this process; to be done before their tracers are built."""
    for task in app.tasks.values():
        task.run = _marked(task, task.run)
        task.on_replace = _closing(task, task.on_replace)


def _marked(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def body(*args: Any, **kwargs: Any) -> Any:
        outbox = _outbox(task)
        if outbox is None:
            with _alone():
                return run(*args, **kwargs)
        _let_chords_go_at_once(task.backend)
        outbox.keeps_back = getattr(task, "atomic_publish", None) == ON_SUCCESS
        with outbox.body(), _alone():
            return run(*args, **kwargs)

    return body


@contextmanager
def _alone() -> Iterator[None]:
    """Let only the process leave this block that has entered it; one that was forked inside ends, as a program does."""
    pid, code = os.getpid(), 0
    try:
        yield
    except BaseException as error:
        if os.getpid() == pid:
            raise
        code = _exit_code(error)
    if os.getpid() != pid:
        try:
            logger.warning("A process that a task has forked came back from the task's body, and ends with %d", code)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return error.code or 0
    logger.error("A process that a task has forked failed", exc_info=error)
    return 1


def _closing(task: Any, on_replace: Callable[..., Any]) -> Callable[..., Any]:
    """Let a task's replacement go along whole: all of a chain or a group, and not only what has its id."""

    @functools.wraps(on_replace)
    def replace(signature: Any) -> Any:
        outbox = _outbox(task)
        if outbox is None:
            return on_replace(signature)
        outbox.release()  # it does not run again: what its body has published is not in vain
        with outbox.closed():
            return on_replace(signature)

    return replace


def _let_chords_go_at_once(backend: Any) -> None:
    """Let a backend that counts a chord's parts elsewhere publish the body as it counts the last one.

    It will not count that part again; a body that waited for the end of the task would be lost with it.
    """
    if getattr(backend, "is_at_home", False) or hasattr(backend, "goes_at_once"):
        return
    count = backend.on_chord_part_return

    @functools.wraps(count)
    def on_chord_part_return(*args: Any, **kwargs: Any) -> Any:
        running = current.running()
        with running.outbox.open() if running is not None and running.outbox is not None else nullcontext():
            return count(*args, **kwargs)

    backend.on_chord_part_return = on_chord_part_return
    backend.goes_at_once = True


def _outbox(task: Any) -> Outbox | None:
    """Return the outbox of *task*, if it is what this process was given to run and not called by what it runs."""
    running = current.running()
    if running is None or running.outbox is None or task.request.id != running.task_id:
        return None
    outbox: Outbox = running.outbox
    return outbox
