"""What Celery's consumer does differently when a lost connection loses nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery.utils.imports import symbol_by_name
from kombu.common import ignore_errors

from atomic_celery.worker import manners
from atomic_celery.worker.requests import request_class
from atomic_celery.worker.strategy import LazyRequest, swift

logger = logging.getLogger(__name__)


class LeasedConsumer:
    """Mixed into the app's consumer class, in front of it.

    Celery forgets at a lost connection what it had received, since no broker would take its acknowledgement any more. A
    lease belongs to the host and not to a connection, so here everything simply goes on.
    """

    app: Any
    controller: Any
    connection: Any
    connection_errors: tuple[type[Exception], ...]
    strategies: dict[str, Any]

    def update_strategies(self) -> None:
        """Prepare every task: settled late by default, its requests with leases, its messages on the short way."""
        host = self.controller.atomic
        for task in self.app.tasks.values():
            manners.settle_late_by_default(task)
            task.Request = request_class(symbol_by_name(task.Request), host)
        super().update_strategies()  # type: ignore[misc]
        if host.is_contained:
            lazy = type("AtomicLazyRequest", (LazyRequest,), {"host": host})
            for name, task in self.app.tasks.items():
                if manners.is_ordinary(task):
                    self.strategies[name] = swift(self, task, self.strategies[name], lazy)

    def create_task_handler(self, **options: Any) -> Callable[[Any], None]:
        """Receive messages as Celery does; one that it cannot receive ends itself, and not this worker."""
        receive = super().create_task_handler(**options)  # type: ignore[misc]

        def on_task_received(message: Any) -> None:
            try:
                receive(message)
            except self.connection_errors:
                raise
            except Exception as error:
                self.controller.atomic.settling.refuse(message, error)

        return on_task_received

    def call_soon(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Do what a remote command asks for; what cannot be done ends that, and not this worker."""

        def attempt() -> None:
            try:
                act(*args, **options)
            except self.connection_errors:
                raise
            except Exception as error:
                logger.error("%s%r cannot be done: %s", getattr(act, "__name__", act), args, error, exc_info=error)

        return super().call_soon(attempt)  # type: ignore[misc]

    def add_task_queue(self, queue: str, *args: Any, **options: Any) -> None:
        """Consume from one more queue; not from one that cannot be declared, also after the next lost connection."""
        try:
            super().add_task_queue(queue, *args, **options)  # type: ignore[misc]
        except self.connection_errors:
            raise
        except Exception:
            if isinstance(queue, str):
                self.app.amqp.queues.deselect(queue)
            raise

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Put a message aside whose body is not what it says; Celery would drop it."""
        self.controller.atomic.settling.refuse(message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002
        """Put a message aside that says no proper time or name; Celery would drop it, and somebody wait for ever."""
        self.controller.atomic.settling.refuse(message, exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Let go of the connection, and of nothing else."""
        logger.warning("The connection to the database was lost and is made again: %s", exc)
        connection, self.connection = self.connection, None
        if connection is not None:
            ignore_errors(connection, connection.close)

    def cancel_active_requests(self) -> None:
        """Cancel what runs, also what nobody has heard of yet."""
        self.controller.atomic.shutdown.stop_unnoticed()
        super().cancel_active_requests()  # type: ignore[misc]

    def on_close(self) -> None:
        """Keep what was received: it is still ours."""


def consumer_class(base: Any) -> type:
    """Return the app's consumer class *base* with leases."""
    plain: type = symbol_by_name(base)
    if issubclass(plain, LeasedConsumer):
        return plain
    return type("AtomicConsumer", (LeasedConsumer, plain), {})
