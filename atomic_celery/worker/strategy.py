"""The way from a message to the pool for what nearly all messages are: a task of today's protocol, arguments as JSON.

Celery decodes the arguments in the main process, where nobody needs them unless something goes wrong. The main process
is what limits a host with short tasks, so here it does not. Whatever is out of the ordinary (a delay, a rate limit,
pickle, an older protocol) takes Celery's own way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from celery.app import trace
from celery.app.task import Context
from celery.signals import task_received
from celery.utils.log import get_logger
from celery.worker import state

from atomic_celery.worker.requests import HeldRequest

logger = get_logger("celery.worker.strategy")

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Place:
    """What all requests of one consumer have in common."""

    app: Any
    hostname: str
    eventer: Any
    utc: bool
    connection_errors: tuple[type[Exception], ...]


class LazyRequest(HeldRequest):
    """A request that decodes its arguments when it is asked for them."""

    def __init__(self, message: Any, task: Any, place: Place) -> None:
        headers, properties, delivery = message.headers, message.properties, message.delivery_info
        self._message, self._body, self._decoded = message, message.body, False
        self._content_type, self._content_encoding = message.content_type, message.content_encoding
        self._task, self._app, self._hostname = task, place.app, place.hostname
        self._eventer, self._utc, self._connection_errors = place.eventer, place.utc, place.connection_errors
        self._on_ack, self._on_reject = message.ack_log_error, message.reject_log_error
        self.id, self._type = headers["id"], headers["task"]
        self.name = headers.get("shadow") or self._type
        self._root_id, self._parent_id = headers.get("root_id"), headers.get("parent_id")
        self._argsrepr, self._kwargsrepr = headers.get("argsrepr", ""), headers.get("kwargsrepr", "")
        self._eta = self._expires = None
        if limits := headers.get("timelimit"):
            self.time_limits = limits
        ignore_result = headers.get("ignore_result")
        self._ignore_result = task.ignore_result if ignore_result is None else ignore_result
        self._delivery_info = {
            "exchange": delivery.get("exchange"),
            "routing_key": delivery.get("routing_key"),
            "priority": properties.get("priority"),
            "redelivered": delivery.get("redelivered", False),
        }
        self._request_dict = {
            **headers,
            "properties": properties,
            "reply_to": properties.get("reply_to"),
            "correlation_id": properties.get("correlation_id"),
            "hostname": place.hostname,
            "delivery_info": self._delivery_info,
        }
        self._enter(properties["atomic"])

    @cached_property
    def _Request__payload(self) -> Any:  # noqa: N802  # where Celery keeps it, and receivers of its signals look
        return self._message.payload

    @property
    def _args(self) -> Any:
        return self._Request__payload[0]

    @property
    def _kwargs(self) -> Any:
        return self._Request__payload[1]

    @cached_property
    def _context(self) -> Any:
        try:
            self._request_dict["args"], self._request_dict["kwargs"], _ = self._Request__payload
            return super()._context
        except Exception:  # its child could not read them either, and failed it for that
            return Context(self._request_dict)


def swift(consumer: Any, task: Any, celerys_own: Handler, make: type[LazyRequest]) -> Handler:
    """Return how messages of *task* are handled: the short way where it will do, else as *celerys_own* does."""
    eventer, buckets, revoked = consumer.event_dispatcher, consumer.task_buckets, state.revoked
    utc = consumer.app.uses_utc_timezone()
    place = Place(consumer.app, consumer.hostname, eventer, utc, consumer.connection_errors)
    says_received = logger.isEnabledFor(logging.INFO)

    def handle(message: Any, payload: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        if payload is not None or not is_plain(message) or buckets[task.name] is not None:
            return celerys_own(message, payload, ack, reject, callbacks)
        request = make(message, task, place)
        if says_received:
            _log(request)
        if request.id in revoked and request.revoked():
            return None
        if task_received.receivers:
            task_received.send(sender=consumer, request=request)
        if eventer is not None and task.send_events and _wanted(eventer):
            _send_received(eventer, request)
        state.task_reserved(request)
        for callback in callbacks:
            callback(request)
        return consumer.on_task_request(request)

    return handle


def is_plain(message: Any) -> bool:
    """Whether nothing about a message needs Celery's own way: protocol 2, JSON that we accept, due now, for ever."""
    headers, body = message.headers, message.body
    return (
        message.content_type == "application/json"
        and (message.accept is None or "application/json" in message.accept)
        and "compression" not in headers
        and body[:1] in ("[", b"[")
        and headers.get("eta") is None
        and headers.get("expires") is None
        and "atomic" in message.properties
    )


def _log(request: LazyRequest) -> None:
    context = {
        "id": request.id,
        "name": request.name,
        "args": request._argsrepr,
        "kwargs": request._kwargsrepr,
        "eta": None,
    }
    logger.info(trace.LOG_RECEIVED, context, extra={"data": context})


def _wanted(eventer: Any) -> bool:
    """Whether events of tasks are sent at the moment; remote control may change it."""
    return bool(eventer.enabled and (not eventer.groups or "task" in eventer.groups))


def _send_received(eventer: Any, request: LazyRequest) -> None:
    eventer.send(
        "task-received",
        uuid=request.id,
        name=request.name,
        args=request._argsrepr,
        kwargs=request._kwargsrepr,
        root_id=request.root_id,
        parent_id=request.parent_id,
        retries=request.request_dict.get("retries", 0),
        eta=None,
        expires=None,
    )
