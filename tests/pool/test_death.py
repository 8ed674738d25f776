"""A child that ends without having been asked to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from billiard.exceptions import Terminated, WorkerLostError

from atomic_celery.concurrency import wire
from atomic_celery.concurrency.link import Link
from tests.pool import tasks
from tests.pool.bench import Bench, Told, alive, open_files
from tests.pool.conftest import OpenBench
from tests.pool.test_recall import hold_one, queue_behind, runs
from tests.support.freezing import freeze
from tests.support.stray_signals import signal_another_thread
from tests.support.waiting import wait_until


def test_the_errand_of_a_killed_child_is_lost_and_the_child_replaced(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    [pid] = bench.pids
    os.kill(pid, signal.SIGKILL)
    bench.run(held)
    assert isinstance(held.error, WorkerLostError)
    assert "signal 9 (SIGKILL)" in str(held.error)
    after = bench.apply(tasks.pid)
    bench.run(after)
    assert after.value != str(pid)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("sys.exit", "exitcode 3"),
        ("os._exit", "exitcode 4"),
        ("segfault", "signal 11 (SIGSEGV)"),
        ("SIGTERM", "signal 15 (SIGTERM)"),
        ("SIGKILL", "signal 9 (SIGKILL)"),
    ],
)
def test_a_task_that_ends_its_process_is_lost(bench: Bench, how: str, says: str) -> None:
    told = bench.apply(tasks.leave, how)
    bench.run(told)
    assert isinstance(told.error, WorkerLostError)
    assert says in str(told.error)
    after = bench.apply(tasks.add, 1, 1)
    bench.run(after)


def test_a_child_without_memory_ends_and_its_errand_is_lost(bench: Bench) -> None:
    told = Told("raw")
    bench.pool.apply_async(tasks.exhaust, (), callback=told.results.append, error_callback=told.failures.append)
    bench.run(told)
    assert isinstance(told.error, WorkerLostError)


def test_what_waited_in_a_dead_child_runs_once_elsewhere(bench: Bench, tmp_path: Path) -> None:
    held = hold_one(bench)
    waiting = queue_behind(bench, 5)
    os.kill(bench.pids[0], signal.SIGKILL)
    bench.run(held, *waiting)
    assert isinstance(held.error, WorkerLostError)
    assert [runs(tmp_path, f"m{number}") for number in range(5)] == [1] * 5


def test_a_result_that_was_sent_before_the_death_counts(bench: Bench) -> None:
    """The child ends and is killed before the host has read what it said."""
    told = bench.apply(tasks.add, 1, 1)
    bench.pool._ledger.tick()
    [link] = bench.pool._crew.links
    wait_until(lambda: has_said_the_end(link))
    os.kill(link.pid, signal.SIGKILL)
    bench.run(told)
    assert told.value == "2"


def has_said_the_end(link: Link) -> bool:
    """Whether a child has told the beginning and the end of an errand, and the host has read neither."""
    try:
        return len(link.stream.recv(4096, socket.MSG_PEEK)) > 2 * len(wire.header(wire.BEGAN))
    except BlockingIOError:
        return False


def test_a_cancelled_errand_does_not_begin_elsewhere_when_its_child_dies(bench: Bench, tmp_path: Path) -> None:
    """The child has drawn its token, so it cannot be taken back; then the child dies before it begins."""
    held = hold_one(bench)
    [waiting] = queue_behind(bench, 1)
    [link] = bench.pool._crew.links
    assert link.tokens.take(1) == 1
    assert waiting.errand is not None
    waiting.errand.terminate(signal.SIGTERM)
    assert not waiting.over
    os.kill(link.pid, signal.SIGKILL)
    bench.run(held, waiting)
    assert isinstance(waiting.error, Terminated)
    assert runs(tmp_path, "m0") == 0


def test_an_idle_child_ends_whichever_of_its_threads_the_signal_finds(bench: Bench) -> None:
    [pid] = bench.pids
    signal_another_thread(pid, signal.SIGTERM)
    bench.run_until(lambda: bench.pids != [pid] and bench.up())


def test_an_idle_child_that_dies_is_replaced(bench: Bench) -> None:
    [pid] = bench.pids
    os.kill(pid, signal.SIGKILL)
    bench.run_until(lambda: bench.pids != [pid] and bench.up())


def test_an_event_that_was_meant_for_a_closed_descriptor_ends_nobody(bench: Bench) -> None:
    """Its number may belong to another child by now."""
    [link] = bench.pool._crew.links
    bench.pool._crew._on_exit(link)
    told = bench.apply(tasks.pid)
    bench.run(told)
    assert told.began == [link.pid]


def test_a_child_that_is_not_up_in_time_is_killed_and_replaced(open_bench: OpenBench) -> None:
    bench = open_bench(1)
    crew = bench.pool._crew
    crew.up_within_s = 0.0
    [old] = crew.links
    bench.pool.grow()
    new = crew.links[-1]
    freeze(new.pid)
    crew.up_within_s = 60.0
    bench.run_until(lambda: new not in crew.links and len(crew.links) == 2 and bench.up())
    assert old in crew.links


def test_children_that_cannot_start_are_not_forked_in_a_tight_loop(open_bench: OpenBench) -> None:
    bench = open_bench(1)
    crew = bench.pool._crew
    crew._rules = type(crew._rules)(app=None, hostname="", max_tasks=None, max_memory_kb=None)
    names = {link.name for link in crew.links}
    os.kill(bench.pids[0], signal.SIGKILL)

    def three_failed() -> bool:
        names.update(link.name for link in crew.links)
        return crew.stillborn >= 3

    bench.run_until(three_failed)
    assert not bench.pool.did_start_ok()
    assert len(names) <= 1 + crew.stillborn + 1


def test_replacing_children_leaks_no_descriptor(bench: Bench) -> None:
    def replace() -> None:
        [pid] = bench.pids
        os.kill(pid, signal.SIGKILL)
        bench.run_until(lambda: bench.pids != [pid] and bench.up())

    replace()
    before = open_files()
    for _ in range(50):
        replace()
    assert (open_files() - before).total() < 50, "the last child's, and none of each before it"


def test_a_child_keeps_no_descriptor_of_its_siblings(open_bench: OpenBench) -> None:
    bench = open_bench(3)
    own = {link.pid: link for link in bench.pool._crew.links}
    for pid in own:
        held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert not held & {described(link.stream.fileno()) for link in own.values()}
        pipes = {link.pid for link in own.values() if described(link.tokens.read_fd) in held}
        assert pipes == {pid}


def described(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def test_children_die_with_their_host(tmp_path: Path) -> None:
    """A host in a process of its own is killed; its children, idle and busy, go with it."""
    host = subprocess.Popen([sys.executable, "-m", "tests.pool.host", str(tmp_path)], stdout=subprocess.PIPE)
    assert host.stdout is not None
    pids = [int(pid) for pid in host.stdout.readline().split()]
    host.stdout.close()
    assert len(pids) == 2
    assert all(map(alive, pids))
    host.kill()
    host.wait()
    wait_until(lambda: not any(map(alive, pids)))
