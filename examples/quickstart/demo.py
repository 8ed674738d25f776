"""The demo itself: start, fan out, kill, recover, compare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import survey
import tasks
from celery import chord
from celery.result import AsyncResult
from crew import Worker
from progress import Progress, print_totals

from atomic_celery import config
from atomic_celery.store import open_store

LEASE_S = tasks.app.conf.atomic_lease


def run(directory: Path, scratch: Path) -> int:
    """Count *directory* on two workers with one killed half-way; return the exit code."""
    paths = [str(path) for path in survey.sources(directory)]
    if not paths:
        print(f"No .py files below {directory}.", file=sys.stderr)
        return 1
    subprocess.run([sys.executable, "-m", "celery", "-A", "tasks", "atomic", "migrate"], cwd=Worker.cwd, check=True)
    workers = [Worker("first", scratch), Worker("second", scratch)]
    try:
        facts = _count(paths, workers)
    finally:
        for worker in workers:
            worker.stop()
    return _compare(facts, paths)


def _count(paths: list[str], workers: list[Worker]) -> list[survey.Facts]:
    result: AsyncResult = chord((tasks.examine.s(path) for path in paths), tasks.add_up.s()).delay()
    print(
        f"{len(paths)} files, one message each. Two workers; lease {LEASE_S:g} s (a fleet would keep the default 30 s)."
    )
    store = open_store(tasks.app.conf.broker_url, config.from_sources(config.celery_keys(tasks.app.conf)))
    progress = Progress(store, total=len(paths))
    progress.until(lambda seen: seen.done >= len(paths) // 2)
    workers[0].kill()
    progress.say(f"SIGKILL to worker {workers[0].name!r}: what it held comes back when its leases run out.")
    progress.until(lambda seen: result.ready())
    progress.close()
    facts: list[survey.Facts] = result.get(timeout=60)
    return facts


def _compare(facts: list[survey.Facts], paths: list[str]) -> int:
    counted = survey.add_up(facts)
    direct = survey.add_up([survey.examine(path) for path in paths])
    print_totals(counted, direct)
    once = sorted(fact["path"] for fact in facts) == paths
    print("Every file once, none lost, none counted twice." if once and counted == direct else "The totals DIFFER.")
    return 0 if once and counted == direct else 1
