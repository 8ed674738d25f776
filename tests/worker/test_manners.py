"""Who set an attribute of a task: its author, or the configuration's default."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task, shared_task

from atomic_celery.worker import manners


class EarlyBase(Task):
    abstract = True
    acks_late = False


def app_of(**conf: Any) -> Celery:
    app = Celery("manners", set_as_current=False, broker="memory://")
    app.conf.update(conf)

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    @app.task(name="early", shared=False, acks_late=False)
    def early() -> None: ...

    @app.task(name="late", shared=False, acks_late=True)
    def late() -> None: ...

    @app.task(name="inherits", shared=False, base=EarlyBase)
    def inherits() -> None: ...

    @app.task(name="twice", shared=False, base=app.create_task_cls())
    def twice() -> None: ...

    class EarlyClass(Task):
        name = "early-class"
        acks_late = False

        def run(self) -> None: ...

    class PlainClass(Task):
        name = "plain-class"

        def run(self) -> None: ...

    app.register_task(EarlyClass())
    app.register_task(PlainClass())
    return app


LATE = {"plain": True, "early": False, "late": True, "inherits": False, "twice": True}
LATE |= {"early-class": False, "plain-class": True}


def settled_late(app: Celery) -> dict[str, bool]:
    app.finalize()
    for task in app.tasks.values():
        manners.settle_late_by_default(task)
    return {name: bool(app.tasks[name].acks_late) for name in LATE}


def test_late_is_the_default_and_a_tasks_own_word_counts() -> None:
    assert settled_late(app_of()) == LATE


def test_a_task_that_was_bound_long_ago_is_judged_alike() -> None:
    app = app_of()
    app.finalize()
    for name in LATE:
        assert app.tasks[name].app is app
    assert settled_late(app) == LATE


@pytest.mark.parametrize("key", ["task_acks_late", "CELERY_ACKS_LATE"])
def test_what_the_configuration_says_itself_is_no_default(key: str) -> None:
    app = Celery("manners", set_as_current=False, broker="memory://")
    app.config_from_object({key: False})

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    app.finalize()
    manners.settle_late_by_default(app.tasks["plain"])
    assert not app.tasks["plain"].acks_late


def test_a_namespaced_configuration_counts_too() -> None:
    app = Celery("manners", set_as_current=False, broker="memory://")
    app.config_from_object({"CELERY_TASK_ACKS_LATE": False}, namespace="CELERY")
    app.finalize()
    assert manners.configured(app.conf, "task_acks_late")
    assert not manners.configured(app.conf, "task_reject_on_worker_lost")


def test_an_annotation_is_a_word_of_ones_own() -> None:
    app = app_of(task_annotations={"plain": {"acks_late": False}})
    assert settled_late(app) == {**LATE, "plain": False}


def test_a_value_set_on_the_task_later_is_one_too() -> None:
    app = app_of()
    app.finalize()
    app.tasks["plain"].acks_late = False
    assert settled_late(app)["plain"] is False


def test_shared_tasks_are_judged_for_each_app() -> None:
    @shared_task(name="shared-early", acks_late=False)
    def early() -> None: ...

    @shared_task(name="shared-plain")
    def plain() -> None: ...

    app = app_of()
    app.finalize()
    assert manners.says(app.tasks["shared-early"], "acks_late")
    assert not manners.says(app.tasks["shared-plain"], "acks_late")
