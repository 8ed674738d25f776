"""A pool, the hub it lives on, and what its errands told."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from billiard.einfo import ExceptionInfo
from celery.app.trace import trace_task_ret
from kombu.asynchronous import Hub, set_event_loop

from atomic_celery.clock import NEVER, Moment
from atomic_celery.concurrency.errand import Errand
from atomic_celery.concurrency.prefork import TaskPool
from tests.pool.tasks import app
from tests.support.waiting import wait_until

T = TypeVar("T")
ALWAYS: Callable[[int, int], Moment] = lambda message_id, fence: NEVER  # noqa: E731
"""Leases that do not run out."""

HOSTNAME = "bench@pool"
Lease = tuple[int, int]

_numbers = itertools.count(1)


@dataclass
class Told:
    """What the callbacks of one errand said, in order."""

    task_id: str
    began: list[int] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    failures: list[ExceptionInfo] = field(default_factory=list)
    timeouts: list[tuple[bool, float]] = field(default_factory=list)
    errand: Errand | None = None

    @property
    def over(self) -> bool:
        return bool(self.results or self.failures)

    @property
    def value(self) -> Any:
        """What the task returned, as the trace shows it; exactly one thing was told."""
        assert not self.failures, self.failures[0].traceback
        [(failed, value, _runtime)] = self.results
        assert not failed, value.traceback
        return value

    @property
    def error(self) -> BaseException:
        """Why the pool has no result; exactly one thing was told."""
        assert not self.results, self.results
        [failure] = self.failures
        return plain(failure)

    @property
    def raised(self) -> BaseException:
        """What the task itself raised, as the trace reports it."""
        assert not self.failures, self.failures[0].traceback
        [(failed, info, _runtime)] = self.results
        assert failed
        return plain(info)


def plain(info: ExceptionInfo) -> BaseException:
    """The exception without the wrapping that carries its traceback."""
    error: Any = info.exception
    if type(error).__name__ == "ExceptionWithTraceback":  # billiard's stub lacks it
        error = error.exc
    assert isinstance(error, BaseException)
    return error


class Bench:
    """A pool on a hub of its own, run only while a test waits for something."""

    def __init__(self, children: int, directory: Path, **options: Any) -> None:
        self.hub = Hub()
        set_event_loop(self.hub)
        app.finalize()
        self.directory = directory
        self.pool = TaskPool(children, app=app, threads=False, initargs=(app, HOSTNAME), **options)
        self.unstarted: list[Errand] = []
        self.pool.on_unstarted = self.unstarted.extend
        self._ended = False

    def start(self) -> Bench:
        self.pool.start()
        self.pool.register_with_event_loop(self.hub)
        self.run_until(self.up, describe="children that are up")
        return self

    def up(self) -> bool:
        return self.pool.free_slots() >= self.pool.num_processes

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.pool.terminate()
            self.hub.close()

    def stop(self) -> None:
        """Stop the pool as Celery does, outside the loop."""
        self._ended = True
        self.pool.close()
        self.pool.stop()
        self.hub.close()

    @property
    def pids(self) -> list[int]:
        pids: list[int] = self.pool.info["processes"]
        return pids

    def apply(self, task: Any, *args: Any, lease: Lease | None = None, **options: Any) -> Told:
        """Hand a task to the pool as Celery's `Request.execute_using_pool` does."""
        told = Told(f"task-{next(_numbers)}")
        request = {
            "id": told.task_id,
            "task": task.name,
            "args": list(args),
            "kwargs": {},
            "retries": 0,
            "ignore_result": True,
            "properties": {"correlation_id": told.task_id},
            "delivery_info": {"routing_key": "bench"},
        }
        if lease is not None:
            request["properties"]["atomic"] = {"id": lease[0], "fence": lease[1], "attempts": 1}
        body = json.dumps([args, {}, {}])
        told.errand = self.pool.apply_async(
            trace_task_ret,
            args=(task.name, told.task_id, request, body, "application/json", "utf-8"),
            accept_callback=lambda pid, at: told.began.append(pid),
            callback=told.results.append,
            error_callback=told.failures.append,
            timeout_callback=lambda soft, timeout: told.timeouts.append((soft, timeout)),
            correlation_id=told.task_id,
            **options,
        )
        return told

    def run_until(
        self, predicate: Callable[[], T], deadline_s: float = 60.0, describe: Callable[[], object] | str = ""
    ) -> T:
        """Run the loop until *predicate* is true."""

        def turn() -> T:
            self.hub.call_later(0.02, lambda: None)
            self.hub.run_once()
            return predicate()

        return wait_until(turn, deadline_s, describe or (lambda: self.pool.info), every_s=0)

    def trust(self, told: Told, until: Moment) -> None:
        """Let the lease of a running task end at *until*, though it was to last longer."""
        assert told.errand is not None
        self.pool.deadlines._write(told.errand.entry, until)

    def begin(self, name: str) -> None:
        """Let a task begin in earnest before the host hears of it: its limits count from then on."""
        self.pool._ledger.tick()
        wait_until(lambda: self.exists(f"{name}.began"))

    def run(self, *told: Told) -> None:
        """Run the loop until all these errands are over."""
        self.run_until(lambda: all(one.over for one in told))

    def exists(self, name: str) -> bool:
        return Path(self.directory, name).exists()

    def let_go(self, name: str) -> None:
        Path(self.directory, f"{name}.go").touch()

    def started_pids(self) -> list[int]:
        """The processes that a task said it had started, once it has said so."""
        path = Path(self.directory, "pids")
        self.run_until(path.exists)
        return [int(pid) for pid in path.read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it is reaped while we read
        return False
    return state not in "ZX"


def open_files() -> Counter[str]:
    """Return what this process has open, and how often; what earlier tests left may be closed at any time."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found
