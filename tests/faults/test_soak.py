"""A long run of faults at random: `ATOMIC_SOAK_S=600 pytest -m soak -n 0 -s`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.faults.chaos import Chaos
from tests.faults.scene import Scene
from tests.support.postgres import PostgresServer
from tests.support.workers import HASTY

LENGTH_S = float(os.environ.get("ATOMIC_SOAK_S", "60"))
SEED = int(os.environ.get("ATOMIC_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
TASKS_A_SECOND = 20_000 / 600
HOSTS, SLOTS = 3, 2
LONGEST_WORK_S = 0.12
SETTINGS = {**HASTY, "ATOMIC_MAX_CRASHES": "1000"}
LONGEST_FAULT_S = 8.0

TABLE = "CREATE TABLE soak_row (number integer PRIMARY KEY, message_id bigint NOT NULL, runs text[] NOT NULL)"

Row = tuple[int, int, list[str]]


@pytest.fixture
def scene(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Scene]:
    """A scene with a table for the rows."""
    url = own_postgres.create_database()
    with closing(psycopg2.connect(url)) as session, session, session.cursor() as cursor:
        cursor.execute(TABLE)
    with closing(Scene(url, tmp_path, settings=SETTINGS, tasks="tests.faults.soak_tasks")) as made:
        yield made


@pytest.mark.soak
@pytest.mark.timeout(LENGTH_S + 900)
def test_whatever_happens_every_task_adds_its_row_and_ends_once(scene: Scene, own_postgres: PostgresServer) -> None:
    """20 000 tasks in ten minutes, fewer in less; hosts and the server are hurt every second or so.

    Asserted, from the database: each task has its row, of which there is one (the number is its key); each message
    was completed once, and not granted again; no attempt ran twice; every attempt in a row wrote it while its claim
    held (the write is refused otherwise), in the order of the fences; the attempt under whose fence a message was
    completed is the last that wrote; and the result is that attempt's.

    Not asserted, because it is not so: that a body runs once. A host may die between the body's last word and the end
    of its claim, and then the body runs again. How many rows saw more than one run is printed.

    The limit on crashes is lifted: a message that meets five faults would rightly be put aside.
    """
    print(f"\nATOMIC_SOAK_SEED={SEED}")
    chaos = Chaos(scene, own_postgres, random.Random(SEED), longest_s=LONGEST_FAULT_S)
    try:
        for number in range(HOSTS):
            chaos.add_host(f"host{number}", slots=SLOTS)
        task_ids = suffer(scene, chaos, random.Random(SEED + 1))
        chaos.calm()
        left = scene.fleet.wait_until(lambda: not scene.fleet.unfinished(), 600, what="every message is settled")
        assert left
        scene.ends_well()
        report = check(scene, task_ids)
    finally:
        chaos.close()
    print(f"{len(task_ids)} tasks; {dict(chaos.done)}; {report}")
    assert sum(chaos.done.values()) > LENGTH_S / 10, "there were hardly any faults"


def suffer(scene: Scene, chaos: Chaos, luck: random.Random) -> list[str]:
    """Publish tasks evenly over the whole time while faults happen; return their ids by their numbers."""
    task_ids: list[str] = []
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < LENGTH_S:
        due = round(min(passed_s + 2, LENGTH_S) * TASKS_A_SECOND)
        works_s = [luck.uniform(0, LONGEST_WORK_S) for _ in range(len(task_ids), due)]
        task_ids += scene.send_many("add_row", enumerate(works_s, len(task_ids)))
        chaos.turn()
        time.sleep(luck.uniform(0, 1.5))
    return task_ids


def check(scene: Scene, task_ids: list[str]) -> str:
    """Check every row against what the database saw; return how eventful it was."""
    with closing(psycopg2.connect(scene.url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT number, message_id, runs FROM soak_row ORDER BY number")
        rows: list[Row] = cursor.fetchall()
    assert [number for number, _, _ in rows] == list(range(len(task_ids)))
    completed = scene.witness.completed_under()
    assert sorted(completed) == sorted(task_ids)
    results = dict(scene.app.backend.get_many(task_ids, timeout=60))
    for number, _, runs in rows:
        fences, task_id = [int(run.split()[0]) for run in runs], task_ids[number]
        assert fences == sorted(set(fences)), f"task {number} ran twice under one fence, or out of order: {runs}"
        assert fences[-1] == completed[task_id], f"task {number} was completed by an attempt that did not write: {runs}"
        assert (results[task_id]["status"], results[task_id]["result"]) == ("SUCCESS", fences[-1])
    again = sum(len(runs) > 1 for _, _, runs in rows)
    retaken = sum(fence > 1 for fence in completed.values())
    return f"{retaken} tasks were taken over, {again} of them after their body had written"
