"""Messages: how full the queues are, where a task is, and moving it by hand."""

from __future__ import annotations

from typing import Any, get_args

from django.http import HttpRequest

from atomic_celery import operations, payload, status
from atomic_celery.operations import Done
from atomic_celery.store.reads import Filter, State
from atomic_celery.store.searches import Found
from atomic_celery.store.store import Store
from django_admin import models
from django_admin.actions import Action, Asked, Field, Outcome
from django_admin.pages import MOST_COUNTED, Context, FleetPage, filters, is_number, pager
from django_admin.results import result_url

PAGE_SIZE = 50
WINDOW = 20_000
TEXT_WINDOW = 5_000
"""How many messages one look reads at most when only some of them match: less where it reads all of each."""

_FILTERS = ("state", "queue", "task", "root", "text", "id")


def _ids(asked: Asked) -> list[int]:
    return [int(target) for target in asked.targets if is_number(target)]


def _outcome(done: Done, because: str) -> Outcome:
    return Outcome(tuple(map(str, done.ids)), done.verb, tuple(map(str, done.skipped)), because)


def _requeue(store: Store, asked: Asked) -> Outcome:
    done = operations.requeue(store, _ids(asked), asked_by=asked.by)
    return _outcome(done, "finished or deleted meanwhile, or ready already")


def _run_now(store: Store, asked: Asked) -> Outcome:
    done = operations.run_now(store, _ids(asked), asked_by=asked.by)
    return _outcome(done, "they were not delayed any more")


def _bury(store: Store, asked: Asked) -> Outcome:
    reason = asked.answers.get("reason") or f"buried by {asked.by}"
    done = operations.bury(store, _ids(asked), reason=reason, asked_by=asked.by)
    return _outcome(done, "finished or deleted meanwhile, or dead already")


def _delete(store: Store, asked: Asked) -> Outcome:
    return _outcome(operations.delete(store, _ids(asked), asked_by=asked.by), "finished or deleted meanwhile")


class MessagePage(FleetPage):
    """Queues and unfinished messages, and one message."""

    name = "messages"
    one_name = "message"
    noun = "message"
    title = "Messages"
    steers = (
        Action(
            name="requeue",
            label="Requeue",
            permission="requeue_message",
            run=_requeue,
            warning="Dead and delayed messages are ready again. One that is running is taken from its holder, which "
            "loses its lease, and runs again from the start.",
        ),
        Action(name="run_now", label="Run now", permission="requeue_message", run=_run_now),
        Action(
            name="bury",
            label="Put aside",
            permission="bury_message",
            run=_bury,
            warning="They run no more until somebody requeues them. One that is running is taken from its holder.",
            fields=(Field("reason", "Reason"),),
        ),
        Action(
            name="delete",
            label="Delete",
            permission="delete_message",
            run=_delete,
            warning="They never run, and cannot be brought back. One that is running is taken from its holder.",
            destroys=True,
        ),
    )

    def look(self, request: HttpRequest, store: Store) -> Context:
        """Read the queues' depths and a page of messages."""
        wanted = filters(request, _FILTERS)
        by_id = wanted.pop("id", None)
        before = request.GET.get("before", "")
        which = Filter(**_known(wanted))
        picky = any((which.queue, which.task, which.root, which.text))
        found = (
            _found_by_id(store, by_id)
            if by_id
            else store.searches.messages(
                which,
                before=int(before) if is_number(before) else None,
                limit=PAGE_SIZE,
                window=(TEXT_WINDOW if which.text else WINDOW) if picky else PAGE_SIZE,
            )
        )
        now_ms = store.now_ms()
        hosts = store.hosts.list()
        shared = status.shared_names(hosts)
        seen = status.compose(now_ms, hosts, (), store.reads.depths(MOST_COUNTED), store=store, version=None)
        return {
            **pager({**wanted, **({"id": by_id} if by_id else {})}, before=found.next_before),
            "rows": [(m, now_ms - m.published_ms, status.where(m, now_ms, shared)) for m in found.messages],
            "found": found,
            "is_first": not before,
            "states": get_args(State),
            "queues": [queue for queue in seen.queues if not queue.temporary or queue.name == which.queue],
        }

    def look_at(self, request: HttpRequest, store: Store, key: str) -> Context | None:
        """Read everything about one message."""
        ids = ids_of(store, key)
        message = store.reads.message(ids[0]) if ids else None
        text = store.reads.payload(message.id) if message is not None else None
        if message is None or text is None:
            return None
        return {
            "message": message,
            "call": payload.read(text, store.settings.mask),
            "crashes": store.reads.crashes(message.id),
            "note": status.where(message, store.now_ms(), status.shared_names(store.hosts.list())),
            "root_url": self.address_of(request, models.Root, message.root_id) if message.root_id else None,
            "result_url": result_url(message.task_id),
        }


def _known(wanted: dict[str, str]) -> dict[str, Any]:
    """Leave out a state that there is not."""
    return {name: value for name, value in wanted.items() if name != "state" or value in get_args(State)}


def _found_by_id(store: Store, wanted: str) -> Found:
    """Look for messages by their own or by their task's id."""
    found = (store.reads.message(message_id) for message_id in ids_of(store, wanted))
    there = tuple(message for message in found if message is not None)
    return Found(there, len(there), None)


def ids_of(store: Store, wanted: str) -> list[int]:
    """Return the ids of the messages that an id means: a message's own, or its task's."""
    return [int(wanted)] if is_number(wanted) else store.reads.ids_of_task(wanted)
