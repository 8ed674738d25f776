"""Messages that differ in nothing but their arguments: Celery makes the first, the others are copies of it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Hashable, Sequence, Set
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from celery.canvas import Signature
from celery.utils import uuid
from celery.utils.saferepr import saferepr
from kombu import compression, serialization

from atomic_celery import mailbag, names
from atomic_celery.mailbag import Mailbag
from atomic_celery.publishing import plainness
from atomic_celery.store import NewMessage, Store
from atomic_celery.transport import codec

if TYPE_CHECKING:
    from celery import Celery
    from celery.result import AsyncResult

_COPIES = mailbag.A_STATEMENT
"""How many copies a stencil makes before Celery is asked again: the countdown of a later one ends later."""

_MOST_STENCILS = 100
_MARK = f"{uuid()}:"  # is in no message


class Stencils:
    """Publishes signatures: by a stencil those that can be, all others as Celery does it."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._plain_app = plainness.of_app(app)
        self._plain_tasks: dict[str, bool] = {}
        self._stencils: dict[Hashable, Stencil] = {}

    def publish(self, signature: Signature) -> AsyncResult[Any]:
        """Send *signature*, into the mailbag that is open."""
        kind = self._kind_of(signature) if self._plain_app else None
        if kind is None:
            return signature.apply_async()
        stencil = self._stencils.get(kind)
        if stencil is None or stencil.copies >= _COPIES:
            return self._publish_first(kind, signature)
        return stencil.publish(signature)

    def _publish_first(self, kind: Hashable, signature: Signature) -> AsyncResult[Any]:
        with mailbag.collecting(Mailbag()) as bag:
            result = signature.apply_async()
        if len(self._stencils) >= _MOST_STENCILS:
            self._stencils.clear()
        for store, rows in bag.waiting.items():
            mailbag.put(store, rows)
            self._stencils[kind] = Stencil(self._app, signature, store, rows, result)
        return result

    def _kind_of(self, signature: Signature) -> Hashable | None:
        """Return what all messages made with one stencil have in common; None: Celery has to make this one."""
        if type(signature) is not Signature or getattr(signature, "_app", None) not in (None, self._app):
            return None
        name, options = signature["task"], signature["options"]
        if name not in self._plain_tasks:
            self._plain_tasks[name] = plainness.of_task(self._app.tasks.get(name))
        if not self._plain_tasks[name]:
            return None
        if not options:
            return (name,)
        kind = (name, *sorted((key, value) for key, value in options.items() if key != "task_id"))
        return kind if plainness.is_hashable(kind) else None


class Stencil:
    """One message of Celery's making, cut open where another call of the same task differs."""

    def __init__(
        self, app: Celery, signature: Signature, store: Store, rows: Sequence[NewMessage], result: AsyncResult[Any]
    ) -> None:
        self.copies = 0
        self._app, self._store, self._rows = app, store, rows
        self._ignored: bool | None = getattr(result, "ignored", None)
        self._subscribes = not self._ignored and not plainness.of_backend(app.backend)
        task = app.tasks.get(signature["task"])
        self._result_of: Callable[[str], AsyncResult[Any]] = (task or app).AsyncResult
        self._check: Callable[..., object] | None = getattr(task, "__header__", None) if task and task.typing else None
        self._message: codec.RawMessage = json.loads(rows[0].payload)
        self._is_root = rows[0].root_id == rows[0].task_id
        self._serializer = serialization.registry.type_to_name[self._message["content-type"]]  # type: ignore[attr-defined]
        self._compressor: str | None = self._message["headers"].get("compression")
        self._is_text = self._message["content-encoding"] == "utf-8" and self._compressor is None
        self._longest_args: int = app.amqp.argsrepr_maxsize
        self._longest_kwargs: int = app.amqp.kwargsrepr_maxsize
        self._parent = app.current_worker_task
        self._embedded = _body_of(self._message)[2]
        self._form = self._cut(set(signature["options"]))

    def publish(self, signature: Signature) -> AsyncResult[Any]:
        """Send a copy that calls *signature*."""
        args, kwargs = signature["args"], signature["kwargs"]
        if self._check is not None:
            self._check(*args, **kwargs)
        task_id = signature["options"].get("task_id") or uuid()
        names.require("task id", task_id)
        if self._subscribes:
            with self._app.producer_or_acquire() as producer:
                self._app.backend.on_task_call(producer, task_id)
        mailbag.put(self._store, self._copy(task_id, args, kwargs))
        self.copies += 1
        result = self._result_of(task_id)
        result.ignored = self._ignored  # type: ignore[assignment]  # as Celery sets it
        if self._parent:
            self._parent.add_trail(result)
        return result

    def _copy(self, task_id: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[NewMessage]:
        payload = self._form % {
            "id": encode_basestring_ascii(task_id),
            "args": encode_basestring_ascii(_repr(args, self._longest_args)),
            "kwargs": encode_basestring_ascii(_repr(kwargs, self._longest_kwargs)),
            "body": encode_basestring_ascii(self._body(args, kwargs)),
        }
        return [
            NewMessage(
                row.queue_id,
                payload,
                task_id,
                row.task_name,
                task_id if self._is_root else row.root_id,
                row.priority,
                row.due_ms,
                row.expires_ms,
                row.limit,
            )
            for row in self._rows
        ]

    def _body(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        _, _, body = serialization.dumps((args, kwargs, self._embedded), serializer=self._serializer)
        if self._is_text:
            return body if isinstance(body, str) else body.decode()
        data = body.encode() if isinstance(body, str) else body
        if self._compressor is not None:
            data, _ = compression.compress(data, self._compressor)
        return base64.b64encode(data).decode("ascii")

    def _cut(self, given: Set[str]) -> str:
        """Return the payload with holes, to be filled with what `_copy` has for them by ``%``."""
        differs = {"id": _mark("id")}
        if self._is_root:
            differs["root_id"] = _mark("id")
        for name in {"argsrepr", "kwargsrepr"} - given:
            differs[name] = _mark(name.removesuffix("repr"))
        properties = {**self._message["properties"], "correlation_id": _mark("id")}
        if not self._is_text:
            properties["body_encoding"] = "base64"
        marked = {
            **self._message,
            "headers": {**self._message["headers"], **differs},
            "properties": properties,
            "body": _mark("body"),
        }
        text = json.dumps(marked, separators=(",", ":")).replace("%", "%%")
        return re.sub(rf'"{_MARK}(\w+)"', r"%(\1)s", text)


def _mark(name: str) -> str:
    return f"{_MARK}{name}"


def _repr(value: Any, longest: int) -> str:
    return plainness.short_repr(value) or saferepr(value, longest)


def _body_of(message: codec.RawMessage) -> Any:
    """Return what a packed message says: arguments, keyword arguments, callbacks."""
    body: Any = message["body"].encode()
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    if compressor := message["headers"].get("compression"):
        body = compression.decompress(body, compressor)
    kind = message["content-type"]
    return serialization.loads(body, kind, message["content-encoding"], accept=[kind])
