"""A small fleet in the test's own transaction, and somebody who looks at it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from django.contrib.auth.models import Permission, User
from django.test import Client, TestCase
from django.urls import reverse

from atomic_celery import operations
from atomic_celery.store.database import Database
from atomic_celery.store.hosts import NewHost
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.reads import MessageView
from atomic_celery.store.records import Claimed, Holder, Lane, NewMessage
from atomic_celery.store.store import Store
from django_admin import project
from django_admin.apps import LABEL
from tests.support.hosts import new_host

HOLDER = Holder("host-1", "boot-1", is_host=True)
PAGES = ("overview", "host", "root", "message", "fleetevent", "term")


def host(host_id: str = "host-1", **facts: Any) -> NewHost:
    """Return a host that may be registered."""
    known = {"slots": 4, "busy": 1, "labels": {"zone": "a"}, "queues": ("celery",), "versions": {"python": "3"}}
    return new_host(host_id, host_id.replace("host", "boot"), **{**known, **facts})


class FleetCase(TestCase):
    """Begins with one queue and nothing else."""

    databases: ClassVar = "__all__"
    queries: int

    def setUp(self) -> None:
        self.store: Store = project.store()
        with self.here():
            self.queue_id = self.store.queues.declare(QueueSpec(name="celery")).id
        self.admin = User.objects.create_superuser("ann", password="x")
        self.client.force_login(self.admin)

    @contextmanager
    def here(self) -> Iterator[Store]:
        """Use the store in the test's own transaction."""
        with self.store.at_home():
            yield self.store

    def publish(self, *args: Any, name: str = "shop.pay", task_id: str | None = None, **facts: Any) -> int:
        """Publish a task's message."""
        kwargs = facts.pop("kwargs", {})
        headers = {"id": task_id, "task": name}
        payload = json.dumps(
            {"body": json.dumps([args, kwargs, {}]), "content-type": "application/json", "headers": headers}
        )
        new = NewMessage(self.queue_id, payload, task_id=task_id, task_name=name, **facts)
        with self.here() as store:
            [message_id] = store.messages.publish([new])
        assert message_id is not None
        return message_id

    def claim(self, limit: int = 100) -> list[Claimed]:
        """Claim for the host."""
        with self.here() as store:
            store.hosts.register(host())
            return store.messages.claim(HOLDER, [Lane(self.queue_id, 0)], limit, 30_000)

    def bury(self, message_id: int, reason: str = "why") -> None:
        """Put a message aside."""
        with self.here() as store:
            operations.bury(store, [message_id], reason=reason, asked_by="test")

    def message(self, message_id: int) -> MessageView | None:
        """Look where a message is."""
        with self.here() as store:
            return store.reads.message(message_id)

    def states(self, ids: Sequence[int]) -> list[str | None]:
        """Say the states of messages; None of one that has ended."""
        return [None if (found := self.message(message_id)) is None else found.state for message_id in ids]

    def events(self) -> list[tuple[str, Any]]:
        """Return what happened, the latest first."""
        with self.here() as store:
            return [(event.kind, event.detail) for event in store.events.list()]

    def see(self, page: str, key: object = None, client: Client | None = None, **query: Any) -> str:
        """Return the text of a page, which must be there."""
        response = (client or self.client).get(url(page, key), query)
        assert response.status_code == 200, response.content[:500]
        return response.content.decode()

    def act(self, page: str, action: str, *targets: object, client: Client | None = None, **fields: Any) -> Any:
        """Ask for something and say yes to every question."""
        data = {"action": action, "selected": [str(target) for target in targets], "confirmed": "yes", **fields}
        return (client or self.client).post(reverse(f"admin:{LABEL}_{page}_act"), data, follow=True)

    def somebody(self, *permissions: str) -> Client:
        """Log in as somebody with these permissions only."""
        user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(content_type__app_label=LABEL, codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    @contextmanager
    def at_most(self, number: int) -> Iterator[None]:
        """Let no more than so many statements reach the database: Django's, and the store's own."""
        ran: list[str] = []
        run = Database.run

        def counting(database: Database, statement: Any, /, **parameters: Any) -> Any:
            ran.append(statement.name)
            return run(database, statement, **parameters)

        with mock.patch.object(Database, "run", counting), self.assertNumQueriesAtMost(number, ran):
            yield

    @contextmanager
    def assertNumQueriesAtMost(self, number: int, others: list[str]) -> Iterator[None]:  # noqa: N802
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as captured:
            yield
        # Savepoints are the test's: a page begins transactions of its own, a test runs it in one.
        own = [query["sql"] for query in captured.captured_queries if "SAVEPOINT" not in query["sql"]]
        ran = own + others
        assert len(ran) <= number, "\n".join(ran)


def url(page: str, key: object = None) -> str:
    """Return the address of a page."""
    if key is None:
        return reverse(f"admin:{LABEL}_{page}_changelist")
    return reverse(f"admin:{LABEL}_{page}_change", args=(key,))
