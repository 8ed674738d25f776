"""Celery's result backend on the store.

While a task runs in the pool ``atomic``, what becomes of it is put into its outbox and so committed with the end of its
claim. Everywhere else it is written at once.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery import states
from celery._state import get_current_task
from celery.backends import base
from celery.backends.asynchronous import AsyncBackendMixin
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CelerysTimeoutError
from celery.result import result_from_tuple
from kombu.utils.encoding import bytes_to_str

from atomic_celery import clock, current, errors, outbox
from atomic_celery.results import chords, encoding
from atomic_celery.results.closing import Closing
from atomic_celery.results.consumer import ResultConsumer
from atomic_celery.results.place import Place
from atomic_celery.store.results import ChordClosed, ChordPart, ChordTerms, Outcome
from atomic_celery.transport import continuing

if TYPE_CHECKING:
    from atomic_celery.store import Store

logger = logging.getLogger(__name__)

A_BATCH = 1000
"""How many outcomes are recorded in one statement."""

CelerysBackend: Any = base.Backend  # its stub lacks half of it
Mixin: Any = AsyncBackendMixin


class Backend(Closing, Mixin, CelerysBackend):  # type: ignore[misc]
    """``result_backend = "atomic"``: the broker's database; ``"atomic+postgresql://…"``: another one."""

    persistent = True
    supports_native_join = True
    supports_result_compression = True
    supports_failure_expires = True

    def __init__(self, app: Any, url: str | None = None, **options: Any) -> None:
        super().__init__(app=app, url=url, **options)
        conf = app.conf
        failure_expires = conf.get("result_failure_expires")
        self._failure_expires = self.expires if failure_expires is None else self.prepare_expires(failure_expires)
        chord_expires = conf.get("result_chord_expires")
        self._chord_expires = self.expires if chord_expires is None else self.prepare_expires(chord_expires)
        self.result_consumer = ResultConsumer(self, app, self.accept, self._pending_results, self._pending_messages)

    # Where it is

    @cached_property
    def place(self) -> Place:
        """The database it writes to."""
        place = Place(self.app, self.url)
        weakref.finalize(self, place.close).atexit = False
        return place

    @property
    def store(self) -> Store:
        """The tables it writes to."""
        return self.place.store

    @property
    def is_at_home(self) -> bool:
        """Whether it writes where the messages are."""
        return self.place.is_home

    @property
    def supports_autoexpire(self) -> bool:
        """Whether workers remove what has expired without being asked by Celery's beat."""
        return self.is_at_home

    def as_uri(self, include_password: bool = False) -> str:
        """Return its URL for people to read."""
        return self.place.shown(reveal=include_password)

    # Waiting

    def add_pending_result(self, result: Any, *_: Any, **__: Any) -> Any:
        """Do nothing: whoever waits keeps what it waits for, and nobody else has to."""
        return result

    def add_pending_results(self, results: Any, *_: Any, **__: Any) -> Any:
        """Do nothing, for the same reason."""
        return results

    def remove_pending_result(self, result: Any) -> Any:
        """Do nothing: there is nothing to remove. Called from finalizers too."""
        return result

    # What a task came to

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **_: Any
    ) -> Any:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = task_id = bytes_to_str(task_id)
        expires_s = self._failure_expires if state == states.FAILURE else self.expires
        self._record(Outcome(task_id, state, self._text(meta), _ms(expires_s)))
        return result

    def _record(self, outcome: Outcome) -> None:
        if self._put_at_the_end(outcome):
            return
        running = current.running() or continuing.of_request(get_current_task())
        if running is None or running.task_id != outcome.task_id or not self.is_at_home:
            self.store.results.record([outcome])
        elif not self.store.results.record_held(outcome, (running.message_id, running.fence)):
            raise errors.LeaseLost(running.message_id, running.fence, doing=f"recording its state {outcome.status}")

    def mark_many_as_revoked(self, task_ids: Iterable[str], reason: str) -> None:
        """Record that none of these will run; one that has begun or ended, whoever knows of it, stays as it is."""
        revoked = self.encode_result(TaskRevokedError(reason), states.REVOKED)
        meta = self._get_result_meta(result=revoked, state=states.REVOKED, traceback=None, request=None)
        missing, keep_ms = iter(task_ids), _ms(self.expires)
        while batch := list(islice(missing, A_BATCH)):
            texts = ((task_id, self._text({**meta, "task_id": task_id})) for task_id in batch)
            self.store.results.record_revoked(
                [Outcome(task_id, states.REVOKED, text, keep_ms) for task_id, text in texts]
            )

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        task_id = str(task_id)
        meta = self._recorded_here(task_id) or self.store.results.get([task_id]).get(task_id, ("", ""))[1]
        return self.meta_of(meta) if meta else {"status": states.PENDING, "result": None}

    def _recorded_here(self, task_id: str) -> str:
        """Return what the running task has come to, or has found out, and what nobody else knows yet."""
        box = self._outbox()
        mine = [] if box is None else [entry for entry in box.entries if isinstance(entry, Outcome)]
        return next((entry.meta for entry in reversed(mine) if entry.task_id == task_id), "")

    def _forget(self, task_id: str) -> None:
        self.store.results.forget(str(task_id))

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,  # noqa: ARG002
        on_message: Any = None,
        on_interval: Any = None,
        max_iterations: int | None = None,
        READY_STATES: Any = states.READY_STATES,  # noqa: N803
        **_: Any,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the id and the meta of each task, as they end."""
        missing = {str(task_id) for task_id in task_ids}
        began_s, iterations = clock.monotonic_s(), 0
        while missing:
            for task_id, (status, meta) in self.store.results.get(sorted(missing)).items():
                if status not in READY_STATES:
                    continue
                missing.discard(task_id)
                self._cache[task_id] = decoded = self.meta_of(meta)
                if on_message is not None:
                    on_message(decoded)
                yield task_id, decoded
            iterations += 1
            waited_s = clock.monotonic_s() - began_s
            if not missing or (max_iterations and iterations >= max_iterations):
                return
            if timeout is not None and waited_s >= timeout:
                raise CelerysTimeoutError(f"Operation timed out ({timeout})")
            if on_interval:
                on_interval()
            nap_s = interval or 0.5
            clock.pause(nap_s if timeout is None else min(nap_s, timeout - waited_s))

    def meta_of(self, text: str) -> dict[str, Any]:
        """Return a recorded meta as Celery wants it."""
        meta: dict[str, Any] = self.decode_result(encoding.from_text(text))
        return meta

    def _text(self, data: Any) -> str:
        return encoding.to_text(self.encode(data))

    # Groups

    def _save_group(self, group_id: str, result: Any) -> Any:
        text = self._text({"result": result.as_tuple()})
        self.store.results.save_group(str(group_id), text, _ms(self.expires))
        return result

    def _restore_group(self, group_id: str) -> dict[str, Any] | None:
        text = self.store.results.get_group(str(group_id))
        if text is None:
            return None
        meta: dict[str, Any] = self.decode(encoding.from_text(text))
        meta["result"] = result_from_tuple(meta["result"], self.app)
        return meta

    def _delete_group(self, group_id: str) -> None:
        self.store.results.forget_group(str(group_id))

    def cleanup(self) -> None:
        """Remove what has expired."""
        while self.store.results.expire(chords.A_BATCH) == chords.A_BATCH:
            pass

    # Chords

    def apply_chord(self, header_result_args: Any, body: Any, **_: Any) -> None:
        """Say what finishes a chord whose header is about to be published."""
        group_id, finisher = header_result_args[0], None
        if self.is_at_home:
            finisher = chords.finisher(self, group_id, body, chords.structure(self.app, header_result_args))
        else:
            chords.save_structure(self, header_result_args)
        self._leave(
            ChordTerms(group_id, finisher=finisher, finished_by_hand=finisher is None, keep_ms=self._chord_keep_ms)
        )

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Say how many parts a chord has, now that it is known."""
        self._leave(ChordTerms(group_id, size=chord_size, keep_ms=self._chord_keep_ms))

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Say that a chord has one part more, which its part that runs is about to publish."""
        if (box := self._outbox()) is not None:
            box.own_ids.add(result.id)  # that part must not end before it is counted that there is one more
            box.entries.append(ChordTerms(chord_id, more=1, keep_ms=self._chord_keep_ms))
        else:
            self._leave(ChordTerms(chord_id, more=1, keep_ms=self._chord_keep_ms))

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: Any) -> None:
        """Count a part of a chord."""
        if not request.id or not request.group:
            return
        text = self._text(self.encode_result(result, state))
        self._leave(chords.part_of(request, state, text, self._chord_keep_ms), request)

    def join_chord(self, group_id: str, structure: Any) -> tuple[str, list[Any]] | None:
        """Return a part of a full chord, and what all came to; None: the chord's end has been dealt with.

        Raises:
            ChordError: One of them failed.
        """
        parts = self.store.results.parts(group_id)
        return (parts[-1][0], chords.joined(self, parts, structure)) if parts else None

    def close_chord(self, group_id: str) -> None:
        """Let the chord be forgotten with the end of the task that dealt with its end."""
        self.put(ChordClosed(group_id))

    @property
    def _chord_keep_ms(self) -> int | None:
        return _ms(self._chord_expires)

    def _leave(self, entry: ChordTerms | ChordPart, request: Any = None) -> None:
        """Put *entry* into the outbox, or do what it says at once."""
        if self._put_at_the_end(entry):
            return
        joins = isinstance(entry, ChordTerms) and self.store.joining()
        with nullcontext() if joins else self.store.transaction("chord"):
            full = outbox.deliver(self.store, [entry])
        for chord in full:
            chords.finish_by_hand(self, chord.group_id, request)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Whether the same call may succeed later."""
        return isinstance(exc, errors.StoreError) and exc.transient


def _ms(seconds: float | None) -> int | None:
    return round(seconds * 1000) if seconds else None
