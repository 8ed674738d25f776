"""A pool from its start to its end."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import billiard
import psutil
import pytest
from celery import signals
from celery.exceptions import ImproperlyConfigured
from kombu.asynchronous import set_event_loop
from kombu.message import Message
from vine import promise

from atomic_celery.concurrency import crew as crew_module
from atomic_celery.concurrency.prefork import TaskPool
from tests.pool import tasks
from tests.pool.bench import Bench, alive, open_files
from tests.pool.conftest import OpenBench
from tests.pool.test_recall import hold_one, queue_behind, runs
from tests.support.freezing import freeze
from tests.support.waiting import wait_until


def test_without_an_event_loop_the_pool_says_what_to_choose() -> None:
    set_event_loop(None)
    pool = TaskPool(1, app=tasks.app, threads=True)
    with pytest.raises(ImproperlyConfigured, match="-P prefork"):
        pool.start()
    pool.stop()


def test_stop_waits_for_running_tasks_and_tells_their_results(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    threading.Timer(0.3, bench.let_go, ["held"]).start()
    bench.stop()
    assert held.value == "None"
    assert not bench.pids


def test_stop_runs_the_acknowledgements_that_were_put_off(bench: Bench, tmp_path: Path) -> None:
    """Celery settles a message in the hub's next turn, and there is no turn any more."""

    acks: list[Message] = []

    class Recorded(Message):
        def ack_log_error(self, *_args: object, **_kwargs: object) -> None:
            acks.append(self)

    message = Recorded()
    held = hold_one(bench)
    assert held.errand is not None
    held.errand.callback = lambda value: bench.hub.call_soon(promise(message.ack_log_error))
    threading.Timer(0.2, bench.let_go, ["held"]).start()
    bench.pool.close()
    bench.pool.stop()
    assert acks == [message]


def test_close_hands_out_what_has_not_begun(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(1)
    held = hold_one(bench)
    in_child = queue_behind(bench, 3)
    in_host = [bench.apply(tasks.mark, str(tmp_path), "host") for _ in range(2)]
    bench.pool.close()
    assert bench.unstarted == [one.errand for one in (*in_child, *in_host)]
    late = bench.apply(tasks.mark, str(tmp_path), "late")
    assert late.errand is None
    assert len(bench.unstarted) == 6
    bench.let_go("held")
    bench.stop()
    assert held.value == "None"
    assert runs(tmp_path, "m0") == runs(tmp_path, "host") == runs(tmp_path, "late") == 0


def test_a_child_that_dies_while_the_pool_stops_is_not_replaced(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    threading.Timer(0.2, os.kill, [held.began[0], signal.SIGKILL]).start()
    bench.stop()
    assert "SIGKILL" in str(held.error)
    assert not bench.pids


def test_terminate_ends_all_at_once_and_tells_nothing(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(2)
    pids = bench.pids
    told = bench.apply(tasks.hold_deaf, str(tmp_path), "a")
    bench.run_until(lambda: told.began)
    bench.pool.terminate()
    assert not any(map(alive, pids))
    assert not told.over
    bench.pool.stop()  # as Celery does after a signal that came while it was stopping


def test_all_can_be_killed_from_another_thread_while_the_loop_is_stuck(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(2)
    told = bench.apply(tasks.spawn, str(tmp_path))
    started, children = bench.started_pids(), bench.pids
    killer = threading.Thread(target=bench.pool.kill_all)
    killer.start()
    killer.join()  # this thread, the loop's, does nothing meanwhile
    assert not any(map(alive, children))
    wait_until(lambda: not any(map(alive, started)))  # nor now
    bench.run(told)
    bench.run_until(lambda: not bench.pids)


def test_stop_kills_a_child_that_does_not_leave(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "FAREWELL_S", 0.5)
    [pid] = bench.pids
    freeze(pid)
    bench.stop()
    wait_until(lambda: not alive(pid))


def test_a_stopped_pool_leaves_no_descriptor_open(open_bench: OpenBench, tmp_path: Path) -> None:
    open_bench(1).stop()
    before = open_files()
    bench = open_bench(3)
    bench.run(*[bench.apply(tasks.add, 1, number) for number in range(20)])
    bench.stop()
    assert not open_files() - before


def test_another_thread_can_call_while_the_pool_runs_and_while_it_stops(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    calls: list[str] = []

    def call() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 2:
            bench.let_go("held")

    caller = threading.Thread(target=bench.pool.call_soon, args=(call,))
    caller.start()
    bench.run_until(lambda: calls)
    threading.Timer(0.2, bench.pool.call_soon, [call]).start()
    bench.stop()
    assert calls == [threading.current_thread().name] * 2
    assert held.value == "None"
    bench.pool.call_soon(call)  # after the end: nothing happens
    assert len(calls) == 2


def test_a_lost_connection_hands_out_what_has_not_begun_and_the_pool_goes_on(bench: Bench, tmp_path: Path) -> None:
    """Celery resets its hub, flushes the pool and registers it anew."""
    held = hold_one(bench)
    waiting = queue_behind(bench, 2)
    bench.pool.flush()
    bench.hub.reset()
    bench.pool.register_with_event_loop(bench.hub)
    assert bench.unstarted == [one.errand for one in waiting]
    bench.let_go("held")
    after = bench.apply(tasks.add, 1, 1)
    bench.run(held, after)
    assert [held.value, after.value] == ["None", "2"]
    os.kill(bench.pids[0], signal.SIGKILL)
    again = bench.apply(tasks.add, 2, 2)
    bench.run(again)
    assert again.value == "4"


def test_a_child_leaves_after_its_number_of_tasks(open_bench: OpenBench) -> None:
    bench = open_bench(2, maxtasksperchild=3)
    told = [bench.apply(tasks.pid) for _ in range(30)]
    bench.run(*told)
    by_child = {one.value: 0 for one in told}
    for one in told:
        by_child[one.value] += 1
    assert max(by_child.values()) == 3
    assert len(by_child) >= 10


def test_a_child_leaves_after_a_task_that_used_too_much_memory(open_bench: OpenBench) -> None:
    bench = open_bench(1, max_memory_per_child=psutil.Process().memory_info().rss // 1024 + 200 * 1024)
    small, big, after = bench.apply(tasks.eat, 1), bench.apply(tasks.eat, 400), bench.apply(tasks.eat, 1)
    bench.run(small, big, after)
    assert small.value == big.value
    assert after.value != big.value


def test_the_pool_grows_and_shrinks(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    bench.pool.grow(2)
    assert bench.pool.num_processes == bench.pool.limit == 3
    bench.run_until(lambda: bench.pool.free_slots() == 2)
    bench.pool.shrink(2)
    bench.run_until(lambda: bench.pids == held.began)
    with pytest.raises(ValueError, match="processes busy"):
        bench.pool.shrink()
    assert bench.pool.num_processes == 1
    bench.let_go("held")
    bench.run(held)
    assert held.value == "None"


def test_a_restart_replaces_every_child_after_its_task(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(2)
    old = set(bench.pids)
    held = hold_one(bench)
    bench.pool.restart()
    bench.run_until(lambda: len(old & set(bench.pids)) == 1 and bench.pool.free_slots() == 1)
    assert not held.over
    bench.let_go("held")
    bench.run(held)
    assert held.value == "None"
    bench.run_until(lambda: not old & set(bench.pids) and bench.up())


def test_children_greet_and_take_leave_as_those_of_prefork_do(open_bench: OpenBench, tmp_path: Path) -> None:
    """Django's fixup, Sentry and many others hang on these signals."""

    def note(kind: str) -> None:
        with open(tmp_path / "signals", "a") as file:
            file.write(f"{kind} {billiard.current_process().name[:15]} {os.getpgid(0) == os.getpid()}\n")

    def on_init(**_: object) -> None:
        note("init")

    def on_shutdown(pid: int, exitcode: int, **_: object) -> None:
        note(f"shutdown {exitcode}")

    def on_fork(**_: object) -> None:
        forks.append(os.getpid())

    forks: list[int] = []
    signals.worker_process_init.connect(on_init)
    signals.worker_process_shutdown.connect(on_shutdown)
    signals.worker_before_create_process.connect(on_fork)
    try:
        open_bench(1).stop()
    finally:
        signals.worker_process_init.disconnect(on_init)
        signals.worker_process_shutdown.disconnect(on_shutdown)
        signals.worker_before_create_process.disconnect(on_fork)
    assert forks == [os.getpid()]
    assert (tmp_path / "signals").read_text().splitlines() == [
        "init ForkPoolWorker- True",
        "shutdown 0 ForkPoolWorker- True",
    ]
