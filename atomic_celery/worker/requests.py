"""A request that knows its lease: when its claim ends, how, and what it means that a child died under it.

Celery's own class decides what is acknowledged and what is stored; this one says when, and adds the endings that Celery
has no word for: *released* (back to the others, unharmed), *lost* (no longer ours), *crashed* (its child died).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.trace import fast_trace_task, trace_task_ret
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.worker import request as celerys
from celery.worker import state

from atomic_celery import clock, current
from atomic_celery.outbox import Entry, Outbox
from atomic_celery.worker import limiting, manners
from atomic_celery.worker.failures import error_of, of_the_task

if TYPE_CHECKING:
    from atomic_celery.store.records import Held
    from atomic_celery.worker.host import Host

logger = logging.getLogger(__name__)

_TIMEOUT_TELLS_ALL = "task_failure" in celerys.Request.on_timeout.__code__.co_names  # newer Celery
_NO_END = (Reject, SystemExit, KeyboardInterrupt)

Phase = Literal["waiting", "with the pool", "running"]


Request: Any = celerys.Request  # its stub knows half of it


class HeldRequest(Request):  # type: ignore[misc]
    """Mixed into the app's request class, in front of it."""

    host: ClassVar[Host]
    plain: ClassVar[Any]

    acknowledged: bool
    time_limits: tuple[float | None, float | None]
    held: Held | None = None
    phase: Phase = "waiting"
    lost = False
    stopping = False
    outcome = "failed"
    began_s: float | None = None
    """When a child began it, by the monotonic clock."""
    ready_s: float | None = None
    """Since when it could have begun, by the same clock; None: nobody knows."""
    is_settling = False
    """Whether its child is done with it, and the database not yet."""
    _outbox: Outbox | None = None
    _end_with: Callable[[HeldRequest, list[Entry]], None] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        # Celery makes a class of its own for every task, in which faster versions of these two hide ours.
        super().__init_subclass__(**options)
        for hiding in {"execute_using_pool", "on_success"} & vars(cls).keys():
            delattr(cls, hiding)

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        claim = (message.properties or {}).get("atomic")
        if claim is not None:
            self._enter(claim)

    def _enter(self, claim: dict[str, Any]) -> None:
        if isinstance(self.id, list | dict):  # Celery keeps its requests by it, in sets
            raise TypeError(f"a task id is text, not {self.id!r:.100}")
        hard_limit_s, soft_limit_s = self.time_limits
        # What is no number would stop the event loop when the task begins; here it stops the message alone.
        self.time_limits = _seconds(hard_limit_s), _seconds(soft_limit_s)
        self.claim = claim
        self.held = (claim["id"], claim["fence"])
        if claim["waited_ms"] is not None:
            self.ready_s = clock.monotonic_s() - claim["waited_ms"] / 1000
        if claim["revoked"]:
            state.revoked.add(self.id)
        self.host.roll.enter(self)
        self.host.chronicle.claimed(self)

    # Starting

    def execute_using_pool(self, pool: Any, **_: Any) -> None:
        """Start the task, unless it is revoked or no longer ours; an early one after it was settled."""
        if not self._is_wanted():
            raise TaskRevokedError(self.id)
        self.phase = "with the pool"
        if self.held is not None and not self.task.acks_late:
            self.host.settling.complete_first(self, lambda: self._start(pool))
        else:
            self._start(pool)

    def _is_wanted(self) -> bool:
        try:
            return not self.revoked() and self._may_start()
        except Exception as error:  # stamps that are none; the event loop that may call this would end over it
            self.host.settling.refuse(self.message, error)
            return False

    def _start(self, pool: Any) -> None:
        try:
            self._apply(pool)
        except Exception as error:  # what no child can be handed: nested too deeply for pickle, or too large
            self.phase = "waiting"
            if self.held is None:
                self.on_failure(ExceptionInfo())
            else:
                self.host.settling.refuse(self.message, error)

    def _apply(self, pool: Any) -> None:
        hard_limit_s, soft_limit_s = self.time_limits
        task, app = self.task, self.app
        errand = pool.apply_async(
            fast_trace_task if app.use_fast_trace_task else trace_task_ret,
            args=(self.type, self.id, self.request_dict, self.body, self.content_type, self.content_encoding),
            accept_callback=self.on_accepted,
            timeout_callback=self.on_timeout,
            callback=self.on_success,
            error_callback=self.on_failure,
            soft_timeout=soft_limit_s or _seconds(task.soft_time_limit),
            timeout=hard_limit_s or _seconds(task.time_limit),
            correlation_id=self.id,
        )
        self._apply_result = None if errand is None else ref(errand)

    def _may_start(self) -> bool:
        if self.host.shutdown.draining:
            self.give_back()
            return False
        return self._still_held() and not limiting.holds_back(self)

    def _still_held(self) -> bool:
        if self.held is None or self.host.keeping.trusts(self.held):
            return True
        self.host.keeping.lose(self, "expired")
        return False

    def maybe_expire(self) -> bool:
        """Whether it is too late to run; the database's clock has the first word."""
        if self.held is not None and self.claim["expired"]:
            state.revoked.add(self.id)
            return True
        return bool(super().maybe_expire())

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Take note that a child has begun it."""
        self.phase, self.began_s = "running", clock.monotonic_s()
        self.host.chronicle.began(self)
        super().on_accepted(pid, time_accepted)

    # Ending as Celery would have it

    def on_success(self, failed__retval__runtime: Any, **options: Any) -> None:
        """Settle it: its child has done all there was to do. Celery hears of it once that is committed."""
        if self.lost:
            return
        failed, value, _ = failed__retval__runtime
        self.outcome = "succeeded" if not failed else "retried" if isinstance(error_of(value), Retry) else "failed"
        if self.held is None:
            self.host.chronicle.count(self, self.outcome)  # it was settled before it began
        entries = getattr(self.errand, "outbox", None)  # Celery's own pools carry none
        if entries is None or self.held is None or self.acknowledged or not self._completes(failed, value):
            with self._concluding():
                super().on_success(failed__retval__runtime, **options)
            return
        self.acknowledged = self.is_settling = True
        self.host.roll.leave(self)
        self.host.settling.complete(self, entries, then=lambda ours: self._completed(ours, failed__retval__runtime))

    def _completes(self, failed: Any, value: Any) -> bool:
        """Whether the end that its child reports is the end of its message."""
        if not failed:
            return True
        error = error_of(value)
        if isinstance(error, Retry | Ignore):
            return True
        settled_by_failure = getattr(self.task, "acks_on_failure", self.task.acks_on_failure_or_timeout)
        return bool(settled_by_failure) and not isinstance(error, _NO_END)

    def _completed(self, ours: bool, failed__retval__runtime: Any) -> None:
        """Let Celery know how it ended, if it was ours to end."""
        self.is_settling = False
        if ours:
            self.host.chronicle.released(self, self.outcome)
            super().on_success(failed__retval__runtime)
        else:
            state.task_ready(self)

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """Settle it: its successor is published."""
        self.outcome = "retried"
        super().on_retry(exc_info)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Fail it at the hard limit, unless it is no longer ours to fail."""
        if not soft and not _TIMEOUT_TELLS_ALL:
            logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
        elif soft or not self._ended_lost():
            with self._concluding():
                super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Settle it as Celery does, but for a child that died: then it runs again, up to a limit."""
        exc_info = of_the_task(exc_info)
        if _TIMEOUT_TELLS_ALL and not return_ok and isinstance(error_of(exc_info), TimeLimitExceeded):
            return  # `on_timeout` comes next, and calls its error callbacks, too
        if self.host.shutdown.aborting or self._ended_lost():
            return
        if self.stopping and self.held is not None:
            self.give_back()
            return
        again = self._child_died(exc_info) and self._runs_again()
        if not again or getattr(self.task, "retry_on_worker_lost", False) or self._stored_success():
            with self._concluding():
                super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
            return
        state.task_ready(self)
        self.acknowledged = True
        self._leave("crashed")
        self.host.settling.crash(self, exc_info, self._burial(exc_info))

    @contextmanager
    def _concluding(self) -> Iterator[None]:
        """Let what is recorded and published inside, and what its child left, go along with its end."""
        if self.held is None or self.acknowledged or self._outbox is not None:
            yield
            return
        try:
            with self._collecting() as box:
                self._outbox = box
                box.entries += getattr(self.errand, "outbox", None) or ()
                yield
        except Exception:
            if self.acknowledged:
                raise
            logger.exception(
                "What follows the end of %s failed, an error callback perhaps; it has ended all the same", self
            )
            self.acknowledge()  # or its claim would be renewed for ever
        finally:
            self._outbox = None
            if self._end_with is not None:
                self._end_with(self, box.entries)

    @contextmanager
    def _collecting(self) -> Iterator[Outbox]:
        """Collect what is recorded and published inside, if its backend writes where its claim is."""
        assert self.held is not None
        box = Outbox(self.host.store.journal, closing=True)
        box.own_ids.add(self.id)
        with current.holding(current.Running(*self.held, self.id, box if self._goes_along() else None)):
            yield box

    def _goes_along(self) -> bool:
        backend = self.task.backend
        return bool(getattr(backend, "is_at_home", isinstance(backend, DisabledBackend)))

    def _burial(self, exc_info: ExceptionInfo) -> list[Entry] | None:
        """Return what is done if this crash was one too many: it fails for good, and nobody waits for it for ever."""
        if self.claim["crashes"] + 1 < self.host.settings.max_crashes or not self._goes_along():
            return None
        with self._collecting() as box:
            self.task.backend.mark_as_failure(
                self.id, error_of(exc_info), request=self._context, store_result=self.store_errors
            )
        return box.entries

    def acknowledge(self) -> None:
        """Complete it, together with all that goes along."""
        if self.acknowledged:
            return
        self._leave(self.outcome)
        if self._outbox is None:
            super().acknowledge()
        else:
            self.acknowledged, self._end_with = True, self.host.settling.complete

    def reject(self, requeue: bool = False) -> None:
        """Make it ready again, or put it aside."""
        if not self.acknowledged:
            self._leave("released" if requeue else "rejected")
            if requeue or self._outbox is None:
                super().reject(requeue)
            else:
                self.acknowledged, self._end_with = True, self.host.settling.reject

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self.outcome = reason
        with self._concluding():
            super()._announce_revoked(reason, terminated, signum, expired)

    # Ending otherwise

    def give_back(self) -> None:
        """Make it ready for others at once, as if it had never been here. Only while no child can run it."""
        state.task_ready(self)
        if self.held is not None and not self.acknowledged:
            self.acknowledged = True
            self._leave("released")
            self.host.settling.release(self)

    def give_up(self) -> None:
        """Take note that it is no longer ours: nothing is stored, signalled, counted or settled any more."""
        self.lost = self.acknowledged = self._already_cancelled = True
        state.task_ready(self)
        self.forget_delivery()
        self.host.roll.leave(self)

    def completed_first(self) -> None:
        """Take note that its claim has ended before it starts: whatever happens now, it does not run again."""
        self.acknowledged = True
        self.host.roll.leave(self)
        self.held = None
        self._request_dict["properties"] = {
            name: value for name, value in self._request_dict["properties"].items() if name != "atomic"
        }

    def forget_delivery(self) -> None:
        """Let the channel forget the message: its claim ends otherwise than by an acknowledgement."""
        self.message.channel.qos.forget(self.message.delivery_tag)

    @property
    def errand(self) -> Any:
        """The pool's handle of it, while there is one."""
        return self._apply_result() if self._apply_result is not None else None

    def bury(self, exc_info: ExceptionInfo) -> None:
        """Say that it failed for good: it has crashed too often. Its result is the claimer's to store."""
        exc, context = error_of(exc_info), self._context
        self.task.request_stack.push(context)
        try:
            signals.task_failure.send(
                sender=self.task,
                task_id=self.id,
                exception=exc,
                args=self.args,
                kwargs=self.kwargs,
                traceback=exc_info.traceback,
                einfo=exc_info,
            )
        finally:
            self.task.request_stack.pop()
        self.send_event("task-failed", exception=repr(exc), traceback=exc_info.traceback)

    def _ended_lost(self) -> bool:
        """Whether it is no longer ours; what its child had to say is then of no interest."""
        if not self.lost and self.held is not None and not self.acknowledged and not self._still_held():
            logger.debug("%s ended too late", self)
        return self.lost

    def _child_died(self, exc_info: ExceptionInfo) -> bool:
        died = isinstance(error_of(exc_info), WorkerLostError | SystemExit | KeyboardInterrupt)
        return died and not self._already_cancelled and not self._already_revoked

    def _runs_again(self) -> bool:
        """Whether the death of its child is not its end: it is settled late, and does not say otherwise."""
        if self.held is None or self.acknowledged:
            return False
        return bool(self.task.reject_on_worker_lost) or not manners.says(self.task, "reject_on_worker_lost")

    def _stored_success(self) -> bool:
        stored = getattr(self, "_success_was_stored", None)  # Celery 5.7
        return bool(stored and stored())

    def _leave(self, outcome: str) -> None:
        if self.held is not None:
            self.host.roll.leave(self)
            self.host.chronicle.released(self, outcome)


def _seconds(limit: Any) -> float | None:
    return limit and float(limit)


def request_class(base: Any, host: Host) -> type[HeldRequest]:
    """Return the app's request class *base* with leases, for the worker that *host* is."""
    plain = getattr(base, "plain", base)
    bases = (HeldRequest,) if plain is Request else (HeldRequest, plain)
    return type("AtomicRequest", bases, {"host": host, "plain": plain})
