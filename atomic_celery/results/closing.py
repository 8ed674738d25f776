"""How a result backend notices that a task's fate is known, and lets the rest go along with its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atomic_celery import outbox

if TYPE_CHECKING:
    from atomic_celery.outbox import Entry, Outbox
    from atomic_celery.store import Store


class Closing:
    """A mixin that stands before a backend of Celery's."""

    @property
    def store(self) -> Store:
        """The tables it writes to, or those of the messages whose ends it takes part in."""
        raise NotImplementedError

    def mark_as_done(self, task_id: str, result: Any, request: Any = None, *args: Any, **options: Any) -> None:
        """Record that a task succeeded."""
        self._begin_to_close(request)
        super().mark_as_done(task_id, result, request, *args, **options)  # type: ignore[misc]

    def mark_as_failure(
        self, task_id: str, exc: Any, traceback: Any = None, request: Any = None, **options: Any
    ) -> None:
        """Record that a task failed, and tell its chord, its chain and its error callbacks."""
        self._begin_to_close(request)
        super().mark_as_failure(task_id, exc, traceback, request, **options)  # type: ignore[misc]

    def mark_as_retry(self, task_id: str, exc: Any, traceback: Any = None, request: Any = None, **options: Any) -> Any:
        """Record that a task is run again."""
        self._begin_to_close(request)
        return super().mark_as_retry(task_id, exc, traceback, request, **options)  # type: ignore[misc]

    def put(self, entry: Entry) -> bool:
        """Let *entry* go along with the end of the running task; False: there is nothing it could go along with."""
        box = self._outbox()
        if box is not None:
            box.entries.append(entry)
        return box is not None

    def _put_at_the_end(self, entry: Entry) -> bool:
        """Do so if the fate of the running task is known; False: it is not, or there is nothing to go along with."""
        box = self._outbox()
        return box is not None and box.closing and self.put(entry)

    def _outbox(self) -> Outbox | None:
        """Return the outbox of the running task, if what is written here can go along with its end."""
        return outbox.of_here(self.store.journal)

    def _begin_to_close(self, request: Any) -> None:
        """Let the rest go along: the fate of the running task is known."""
        box = self._outbox()
        if box is not None and request is not None and getattr(request, "id", None) in box.own_ids:
            box.closing = True
