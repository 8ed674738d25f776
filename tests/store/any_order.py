"""Running a state machine of the protocol with any order of events, each time on a store of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from atomic_celery.config import Settings
from atomic_celery.store.store import Store, open_store
from tests.store.desk import NOW_MS


class Machine(RuleBasedStateMachine):
    """A state machine over a store, at a time that only it moves."""

    max_crashes: ClassVar[int]
    make_store: ClassVar[Callable[[], AbstractContextManager[Store]]]

    def __init__(self) -> None:
        super().__init__()
        self._opened = self.make_store()
        self.store = self._opened.__enter__()

    def teardown(self) -> None:
        self._opened.__exit__(None, None, None)


def run_on_sqlite(machine: type[Machine], directory: Path) -> None:
    """Run it on files in *directory*."""
    numbers = itertools.count()

    @contextmanager
    def make_store() -> Iterator[Store]:
        path = directory / f"{next(numbers)}.db"
        yield from _open(f"sqlite:///{path}", "atomic", machine.max_crashes)
        path.unlink()

    _run(machine, make_store, examples=30)


def run_on_postgresql(machine: type[Machine], url: str) -> None:
    """Run it on one database, under a prefix for each time."""
    numbers = itertools.count()

    @contextmanager
    def make_store() -> Iterator[Store]:
        yield from _open(url, f"life_{next(numbers)}", machine.max_crashes)

    _run(machine, make_store, examples=10)


def _open(url: str, prefix: str, max_crashes: int) -> Iterator[Store]:
    store = open_store(url, Settings(prefix=prefix, max_crashes=max_crashes))
    store.at(NOW_MS)
    store.schema.migrate()
    yield store
    store.close()


def _run(machine: type[Machine], make_store: Callable[[], AbstractContextManager[Store]], *, examples: int) -> None:
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"make_store": staticmethod(make_store)}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
