# ruff: noqa: PT011, PT012  # a block that is left by an error is what is looked at
"""How publishing goes along with Django's transactions, seen by Django's own test cases."""

import asyncio
import threading
from typing import Any, ClassVar
from unittest import skipUnless

import pytest
from asgiref.sync import sync_to_async
from celery import group
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext
from proj.celery import app
from shop.models import Order
from shop.tasks import handle, handle_alone, handle_once

import atomic_celery


def sent(alias: str = "default") -> list[str]:
    """Return the task ids that a new transaction sees."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT task_id FROM atomic_message ORDER BY id")
        return [task_id for (task_id,) in cursor.fetchall()]


class Emptied:
    """Begins with no messages."""

    databases: ClassVar = {"default", "other"}

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        for alias in self.databases:
            with connections[alias].cursor() as cursor:
                for table in ("message", "ready", "gated", "delayed"):
                    cursor.execute(f"DELETE FROM atomic_{table}")


class Transactions(Emptied, TransactionTestCase):
    def test_outside_of_a_block_it_commits_at_once(self) -> None:
        result = handle.delay("a")
        assert _elsewhere(sent) == [result.id]

    def test_a_block_that_commits_has_published(self) -> None:
        with transaction.atomic():
            result = handle.delay("a")
            assert _elsewhere(sent) == []
        assert sent() == [result.id]

    def test_a_block_that_raises_has_not(self) -> None:
        with pytest.raises(ValueError), transaction.atomic():
            handle.delay("a")
            raise ValueError
        assert sent() == []

    def test_nested_blocks_roll_back_by_themselves(self) -> None:
        with transaction.atomic():
            first = handle.delay("a")
            with pytest.raises(ValueError), transaction.atomic():
                handle.delay("b")
                raise ValueError
            with transaction.atomic():
                third = handle.delay("c")
        assert sent() == [first.id, third.id]

    def test_savepoints_by_hand(self) -> None:
        with transaction.atomic():
            first = handle.delay("a")
            savepoint = transaction.savepoint()
            handle.delay("b")
            transaction.savepoint_rollback(savepoint)
        assert sent() == [first.id]

    def test_set_rollback(self) -> None:
        with transaction.atomic():
            handle.delay("a")
            transaction.set_rollback(True)
        assert sent() == []

    def test_manual_commits(self) -> None:
        transaction.set_autocommit(False)
        try:
            handle.delay("a")
            transaction.rollback()
            kept = handle.delay("b")
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert sent() == [kept.id]

    def test_delay_on_commit_goes_on_working(self) -> None:
        with transaction.atomic():
            handle.delay_on_commit("a")
            assert sent() == []
        assert len(sent()) == 1
        with pytest.raises(ValueError), transaction.atomic():
            handle.delay_on_commit("b")
            raise ValueError
        assert len(sent()) == 1

    def test_many_join_too(self) -> None:
        with pytest.raises(ValueError), transaction.atomic():
            atomic_celery.publish_many([handle.s(str(number)) for number in range(1500)], app=app)
            group(handle.s("a"), handle.s("b")).apply_async()
            raise ValueError
        assert sent() == []
        with transaction.atomic():
            atomic_celery.publish_many([handle.s(str(number)) for number in range(1500)], app=app)
        assert len(sent()) == 1500

    def test_a_bulk_is_no_way_out_of_a_block(self) -> None:
        with atomic_celery.bulk(app):
            kept = handle.delay("a")
            with pytest.raises(ValueError), transaction.atomic():
                handle.delay("b")
                raise ValueError
            with transaction.atomic():
                also = handle.delay("c")
                with pytest.raises(ValueError), transaction.atomic(), atomic_celery.bulk(app):
                    handle.delay("d")
                    raise ValueError
        assert sorted(sent()) == sorted([kept.id, also.id])

    def test_a_block_of_another_database_is_not_joined(self) -> None:
        with pytest.raises(ValueError), transaction.atomic(using="other"):
            kept = handle.delay("a")
            raise ValueError
        assert sent() == [kept.id]

    def test_another_app_may_publish_to_another_database(self) -> None:
        with (
            app.connection_for_write() as default,
            type(app)("other", broker="atomic+django://other", set_as_current=False) as other,
        ):
            del default
            with transaction.atomic(), transaction.atomic(using="other"):
                handle.delay("a")
                elsewhere = other.send_task("shop.tasks.handle", ["b"])
                transaction.set_rollback(True)
        assert (sent(), sent("other")) == ([], [elsewhere.id])

    def test_an_aborted_transaction_raises_djangos_own_error(self) -> None:
        with pytest.raises(DatabaseError), transaction.atomic():
            try:
                Order.objects.create(id=1, name="a")
                Order.objects.create(id=1, name="b")
            except IntegrityError:
                handle.delay("c")
                if connection.vendor == "sqlite":  # whose transactions are not aborted by an error
                    raise
        assert sent() == []

    def test_a_block_that_needs_a_rollback_raises_djangos_own_error(self) -> None:
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                handle.delay("a")

    def test_each_thread_has_its_own_transaction(self) -> None:
        handle.delay("before")
        with transaction.atomic():
            handle.delay("a")
            if connection.vendor == "postgresql":  # SQLite has one writer at a time
                _elsewhere(lambda: handle.delay("b"))
            transaction.set_rollback(True)
        assert len(sent()) == (2 if connection.vendor == "postgresql" else 1)

    def test_a_queue_first_used_in_a_block_that_rolls_back_is_declared_again(self) -> None:
        for fails in (True, False):
            try:
                with transaction.atomic():
                    handle.apply_async(("a",), queue="fresh")
                    if fails:
                        raise ValueError
            except ValueError:  # noqa: PERF203
                assert sent() == []
        handle.apply_async(("a",), queue="fresh")
        assert len(sent()) == 2

    def test_a_call_that_is_rolled_back_holds_no_key(self) -> None:
        with pytest.raises(ValueError), transaction.atomic():
            handle_once.delay("a")
            raise ValueError
        with transaction.atomic():
            with pytest.raises(ValueError), transaction.atomic():
                handle_once.delay("a")
                raise ValueError
            kept, joined = handle_once.delay("a"), handle_once.delay("a")
        assert kept.id == joined.id == handle_once.delay("a").id
        assert sent() == [kept.id]

    def test_a_limit_first_heard_of_in_a_block_that_rolls_back_holds_afterwards(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM atomic_limit")
        with pytest.raises(ValueError), transaction.atomic():
            handle_alone.delay("a")
            raise ValueError
        handle_alone.delay("a")
        with transaction.atomic():
            handle_alone.delay("a")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), max(max_running) FROM atomic_gated JOIN atomic_limit ON atomic_limit.id = limit_id"
            )
            assert cursor.fetchone() == (2, 1)

    @skipUnless(connection.vendor == "postgresql", "on SQLite every commit is noticed")
    def test_workers_are_woken_by_the_commit_and_not_before(self) -> None:
        handle.delay("a")
        _fall_asleep()
        with transaction.atomic():
            handle.delay("b")
            with transaction.atomic():
                handle.delay("c")
            assert _asleep() == 1
            transaction.set_rollback(True)
        assert _asleep() == 1
        with transaction.atomic():
            handle.delay("d")
            with pytest.raises(ValueError), transaction.atomic():
                handle.delay("e")
                raise ValueError
        assert _asleep() == 0

    def test_asynchronous_code_asks_as_django_does(self) -> None:
        async def publish() -> Any:
            result = await sync_to_async(handle.delay)("a")
            await sync_to_async(lambda: connection.close())()  # the one of the thread that did it
            return result

        result = asyncio.run(publish())
        assert sent() == [result.id]

    def test_a_coroutine_that_forgets_to_is_told_so(self) -> None:
        from django.core.exceptions import SynchronousOnlyOperation

        async def publish() -> None:
            handle.delay("a")

        with pytest.raises(SynchronousOnlyOperation):
            asyncio.run(publish())


class Requests(Emptied, TransactionTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client.raise_request_exception = False

    def test_a_request_that_succeeds_has_published(self) -> None:
        assert self.client.get("/order/?name=a").status_code == 200
        assert len(sent()) == 1

    def test_a_request_that_fails_has_not(self) -> None:
        assert self.client.get("/order/fail/?name=a").status_code == 500
        assert (sent(), Order.objects.count()) == ([], 0)

    def test_a_view_outside_of_transactions_publishes_at_once(self) -> None:
        assert self.client.get("/order/outside/?name=a").status_code == 500
        assert len(sent()) == 1


class InATestCase(Emptied, TestCase):
    """Whatever a test publishes goes with it."""

    @classmethod
    def setUpTestData(cls) -> None:
        handle.apply_async(("a",), queue="class")

    def test_one(self) -> None:
        result = handle.apply_async(("a",), queue="class")
        assert sent() == [result.id]

    def test_two(self) -> None:
        result = handle.apply_async(("a",), queue="class")
        assert sent() == [result.id]

    def test_publishing_asks_for_nothing_of_djangos_log(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            handle.delay("a")
        assert len(queries) == 0

    def test_callbacks_on_commit_can_be_run(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            handle.delay_on_commit("a")
        assert len(sent()) == 1


class AfterTheTestCases(TransactionTestCase):
    """Runs after them."""

    def test_nothing_is_left_of_a_test_case(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM atomic_message AS m JOIN atomic_queue AS q ON q.id = m.queue_id"
                " WHERE q.name = 'class'"
            )
            assert cursor.fetchone() == (0,)


def _fall_asleep() -> None:
    """Be a worker that waits for a message."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO atomic_waiter SELECT id, 'worker', 9e15 FROM atomic_queue WHERE name = 'celery'")


def _asleep() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM atomic_waiter WHERE holder = 'worker'")
        return int(cursor.fetchone()[0])


def _elsewhere(work: Any) -> Any:
    """Do *work* on another thread, with a connection of its own; of a database in memory there is but one."""
    if connection.vendor == "sqlite":
        return work() if not connection.in_atomic_block else []
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]
