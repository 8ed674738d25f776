"""One read of the signal at the size that is promised: 1 M messages, 10 000 workflows, 1 000 hosts (benchmark)."""

from __future__ import annotations

import statistics
import time

import pytest

from atomic_celery.fleet import scaling
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.snapshot import read
from atomic_celery.store.store import Store

FILL = """
INSERT INTO atomic_queue (name, used_ms) SELECT 'queue-' || n, 0 FROM generate_series(1, 20) AS n;
INSERT INTO atomic_message (queue_id, task_id, task_name, root_id, priority, payload, published_ms)
SELECT 1 + n % 20, 'task-' || n, 'proj.work', 'root-' || n % 10000, n % 10, repeat('x', 300), 1700000000000 + n
  FROM generate_series(1, 1000000) AS n;
INSERT INTO atomic_limit (name, max_running, used_ms) SELECT 'root-' || n, 8, 0 FROM generate_series(1, 10000) AS n;
INSERT INTO atomic_delayed (message_id, queue_id, priority, due_ms, fence, crashes)
SELECT id, queue_id, priority, 9000000000000 + id, 0, 0 FROM atomic_message WHERE id > 900000 AND id <= 990000;
INSERT INTO atomic_claim (message_id, queue_id, priority, position, fence, crashes, holder, boot, claimed_ms,
                          lease_until_ms)
SELECT id, queue_id, priority, id, 1, 0, 'host-' || id % 1000, 'b', 0, 9999999999999
  FROM atomic_message WHERE id > 990000;
INSERT INTO atomic_host (id, boot, name, machine, machine_boot, pid, pid_started, slots, busy, labels, queues, versions,
                         started_ms, reported_ms, poll_failures)
SELECT 'host-' || n, 'b', 'celery@host-' || n, 'm', 'mb', 1, '1', 16, 10, '{"zone": "a"}', '["queue-1", "queue-2"]',
       '{"python": "3.12", "celery": "5.6"}', 0, 9999999999999, 0
  FROM generate_series(1, 1000) AS n;
"""
READY = """
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT id, queue_id, priority, id, 0, 0 FROM atomic_message WHERE id <= 800000;
INSERT INTO atomic_gated (message_id, queue_id, lane, root_limit_id, priority, position, fence, crashes)
SELECT id, 1, '0.' || (1 + id % 10000), 1 + id % 10000, priority, id, 0, 0
  FROM atomic_message WHERE id > 800000 AND id <= 900000;
"""
GATED = """
INSERT INTO atomic_gated (message_id, queue_id, lane, root_limit_id, priority, position, fence, crashes)
SELECT id, 1, '0.' || (1 + id % 10000), 1 + id % 10000, priority, id, 0, 0 FROM atomic_message WHERE id <= 900000;
"""
FEW = "UPDATE atomic_limit SET max_running = 2;\n"
FULL = """
UPDATE atomic_limit SET max_running = 1;
INSERT INTO atomic_admitted (limit_id, message_id, fence)
SELECT id - 990000, id, 1 FROM atomic_message WHERE id > 990000;
"""
SHAPES = {
    "most are ready": (READY, 1000),
    "all wait for 8 at a time of each workflow": (GATED, 1000),
    "all wait for 2 at a time": (GATED + FEW, 1000),
    "all wait for the one that runs": (GATED + FULL, 625),
}
LIMIT_MS = 100


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_one_read_at_the_promised_size(postgres_store: Store, shape: str) -> None:
    """Prints what it measured; it asserts only what does not depend on the machine: that the answer is right."""
    fill, wanted = SHAPES[shape]
    database = postgres_store._database
    with database.own_connection() as driver, driver.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        for statement in [*(FILL + fill).split(";\n"), "VACUUM ANALYZE"]:
            if statement.strip():
                cursor.execute(statement)
    policy = Policy(max_hosts=1000, workers_per_host=16)
    for name, look in {
        "scaling signal": lambda: scaling.read(postgres_store, policy),
        "controller's snapshot": lambda: read(postgres_store, policy, []),
    }.items():
        took = []
        for _ in range(20):
            began_s = time.perf_counter()
            look()
            took.append((time.perf_counter() - began_s) * 1000)
        median = statistics.median(took)
        print(f"{shape}: {name}: median {median:.1f} ms, slowest {max(took):.1f} ms (limit {LIMIT_MS} ms)")
    signal = scaling.read(postgres_store, policy)
    assert (signal.desired_hosts, signal.hosts, signal.running) == (wanted, 1000, 10_000)
