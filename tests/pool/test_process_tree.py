"""Whatever a task started ends with its child, wherever it hid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from atomic_celery import process_tree
from atomic_celery.concurrency import vigil
from tests.pool import tasks
from tests.pool.bench import Bench, alive
from tests.pool.conftest import OpenBench
from tests.support.waiting import wait_until


def all_ended(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def test_a_killed_child_takes_along_what_it_started(bench: Bench, tmp_path: Path) -> None:
    """A plain child process, one in a session of its own, and an orphan of that kind."""
    told = bench.apply(tasks.spawn, str(tmp_path))
    pids = bench.started_pids()
    assert len(pids) == 3
    assert all(map(alive, pids))
    assert told.errand is not None
    bench.run_until(lambda: told.began)
    bench.pool.kill(told.errand)
    wait_until(lambda: all_ended(pids))  # the loop does not run
    bench.run(told)


def test_a_terminated_child_takes_along_what_it_started(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.spawn, str(tmp_path))
    pids = bench.started_pids()
    bench.run_until(lambda: told.began)
    bench.pool.terminate_job(bench.pids[0], signal.SIGTERM)
    bench.run(told)
    bench.run_until(lambda: all_ended(pids))


def test_a_hard_limit_takes_along_what_the_task_started(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.spawn, str(tmp_path), timeout=60)
    pids = bench.started_pids()
    bench.run_until(lambda: told.began)
    assert told.errand is not None
    bench.pool.on_hard_timeout(told.errand)
    bench.run(told)
    bench.run_until(lambda: all_ended(pids))


def test_a_child_that_leaves_takes_along_what_its_tasks_left_behind(open_bench: OpenBench, tmp_path: Path) -> None:
    bench = open_bench(1, maxtasksperchild=1)
    told = bench.apply(tasks.spawn_and_return, str(tmp_path))
    pids = bench.started_pids()
    bench.run(told)
    bench.run_until(lambda: all_ended(pids))


def test_a_stopped_pool_leaves_nothing_behind(bench: Bench, tmp_path: Path) -> None:
    told = bench.apply(tasks.spawn_and_return, str(tmp_path))
    pids = [*bench.started_pids(), *bench.pids]
    bench.run(told)
    bench.stop()
    wait_until(lambda: all_ended(pids))


def test_a_child_that_died_alone_leaves_nothing_behind(bench: Bench, tmp_path: Path) -> None:
    """Its orphans are below nobody any more, and are found all the same."""
    told = bench.apply(tasks.spawn, str(tmp_path))
    pids = bench.started_pids()
    os.kill(bench.pids[0], signal.SIGKILL)
    bench.run(told)
    bench.run_until(lambda: all_ended(pids))


def test_processes_that_keep_forking_are_ended() -> None:
    code = (
        "import os, time\n"
        "while True:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(600)\n"
        "    time.sleep(0.01)\n"
    )
    setup = (
        "import ctypes, os, subprocess, sys\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.setpgid(0, 0)\n"
        "busy = [subprocess.Popen([sys.executable, '-c', sys.argv[1]]) for _ in range(2)]\n"
        "busy[0].wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", setup, code])
    wait_until(lambda: len(running(code)) > 30)
    process_tree.kill(parent.pid)
    parent.wait()
    wait_until(lambda: not running(code))


def running(code: str) -> list[psutil.Process]:
    """Return the living processes that were started with *code*, and what they forked."""
    processes = psutil.process_iter(["cmdline", "status"])
    return [each for each in processes if code in (each.info["cmdline"] or ()) and each.info["status"] != "zombie"]


def test_orphans_that_ended_do_not_pile_up_in_a_child(open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "REAP_EVERY_S", 0.3)
    bench = open_bench(1)
    told = bench.apply(tasks.spawn_short_orphans, 5)
    bench.run(told)
    [pid] = bench.pids
    bench.run_until(lambda: not zombies_of(pid))
    assert bench.pids == [pid]


def zombies_of(parent: int) -> list[str]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [child for child in children if not alive(int(child))]
