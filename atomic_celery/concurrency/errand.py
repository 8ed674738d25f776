"""One piece of work on its way through the pool: what Celery calls an apply result."""

from __future__ import annotations

import enum
import logging
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atomic_celery.concurrency.deadline_page import Held
    from atomic_celery.concurrency.link import Link

logger = logging.getLogger(__name__)

Callback = Callable[..., Any]


class State(enum.Enum):
    """Where an errand is."""

    WAITING = "waiting"  # in the host
    SENT = "sent"  # with a child, not known to have begun
    RUNNING = "running"
    OVER = "over"  # ended, or taken out of the pool


class Errand:
    """One call of *target*, from `TaskPool.on_apply` to its callbacks.

    Attributes:
        lease: (message id, fence) of the message it executes; None for anything else.
        outbox: What the task wants committed together with its end; set before the callback is called.
        terminated: The signal it is, or would have been, ended by; None unless somebody asked for its end.
    """

    __slots__ = (
        "__weakref__",
        "accept_callback",
        "began_s",
        "callback",
        "cancel",
        "correlation_id",
        "entry",
        "error_callback",
        "given_s",
        "lease",
        "link",
        "outbox",
        "payload",
        "propagate",
        "soft_timeout_s",
        "state",
        "terminated",
        "ticket",
        "timeout_callback",
        "timeout_s",
        "timer",
    )

    def __init__(
        self,
        ticket: int,
        payload: bytes,
        lease: Held | None,
        cancel: Callable[[Errand], None],
        *,
        accept_callback: Callback | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
        timeout_callback: Callback | None = None,
        soft_timeout_s: float | None = None,
        timeout_s: float | None = None,
        correlation_id: str | None = None,
        propagate: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.ticket, self.payload, self.lease, self.cancel = ticket, payload, lease, cancel
        self.accept_callback, self.callback = accept_callback, callback
        self.error_callback, self.timeout_callback = error_callback, timeout_callback
        self.soft_timeout_s, self.timeout_s = soft_timeout_s, timeout_s
        self.correlation_id, self.propagate = correlation_id, propagate
        self.state = State.WAITING
        self.link: Link | None = None
        self.entry = 0
        self.given_s = self.began_s = 0.0
        self.timer: Any = None
        self.outbox: list[Any] | None = None
        self.terminated: int | None = None

    @property
    def request(self) -> Any:
        """Celery's request whose callbacks these are; None when they are plain functions."""
        return getattr(self.error_callback, "__self__", None)

    @property
    def worker_pid(self) -> int | None:
        """The process that runs it."""
        return self.link.pid if self.link is not None and self.state is State.RUNNING else None

    def ready(self) -> bool:
        """Whether it is over."""
        return self.state is State.OVER

    def terminate(self, signum: int) -> None:
        """Never begin this errand. A running one is stopped by the pool's `terminate_job`."""
        self.terminated = signum
        self.cancel(self)

    def accept(self, pid: int, time_accepted: float) -> None:
        """Tell that a child has begun it."""
        if self.accept_callback is not None:
            self._call(self.accept_callback, pid, time_accepted)

    def succeed(self, value: Any) -> None:
        """Tell what *target* returned."""
        if self.callback is not None:
            self._call(self.callback, value)

    def fail(self, failure: ExceptionInfo) -> None:
        """Tell why there is no return value."""
        if self.error_callback is not None:
            self._call(self.error_callback, failure)

    def fail_with(self, error: BaseException) -> None:
        """Tell *error* as the reason, with a traceback as billiard would give it."""
        try:
            raise error
        except type(error):
            self.fail(ExceptionInfo())

    def time_out(self, *, soft: bool) -> None:
        """Tell that a time limit is over."""
        if self.timeout_callback is not None:
            limit_s = self.soft_timeout_s if soft else self.timeout_s
            self._call(self.timeout_callback, soft=soft, timeout=limit_s)

    def _call(self, callback: Callback, *args: Any, **kwargs: Any) -> None:
        """Call *callback*; what goes wrong in it must not stop the loop, unless the caller asked for that."""
        try:
            callback(*args, **kwargs)
        except MemoryError:
            raise
        except self.propagate:
            raise
        except Exception as error:
            logger.exception("Pool callback raised exception: %r", error)

    def __repr__(self) -> str:
        return f"<Errand {self.ticket} {self.state.value} {self.correlation_id or ''}>"


def pack(
    target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, journal: str | None
) -> tuple[bytes, Held | None]:
    """Return a call as the bytes a child gets, and the lease it is done under.

    A request carries its arguments twice, decoded and as the message's body; the child decodes the body itself.
    """
    lease = None
    if len(args) == _TRACE_ARGS and isinstance(args[_REQUEST], dict):
        request = args[_REQUEST]
        lease = _lease_of(request)
        args = (*args[:_REQUEST], {**request, "args": (), "kwargs": {}}, *args[_REQUEST + 1 :])
    call = target, args, kwargs, lease, journal
    return pickle.dumps(call, protocol=pickle.HIGHEST_PROTOCOL), lease


_TRACE_ARGS, _REQUEST = 6, 2  # (task, id, request, body, content type, content encoding)


def _lease_of(request: dict[str, Any]) -> Held | None:
    atomic = (request.get("properties") or {}).get("atomic")
    return (atomic["id"], atomic["fence"]) if atomic else None
