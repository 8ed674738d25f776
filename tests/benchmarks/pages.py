"""``python -m tests.benchmarks.pages``: how long each page of the admin takes on a large fleet.

A million messages, half of them lone tasks and half children of ten thousand roots; another million children of one
root; five hundred hosts, a full history; on a PostgreSQL of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from atomic_celery.config import Settings
from atomic_celery.store import open_store
from tests.admin_site.running import Site
from tests.benchmarks.database import Database, temporary
from tests.support.postgres import PostgresServer

MOST_MS, MOST_STATEMENTS = 300, 20


@dataclass(frozen=True)
class Scale:
    """How large the fleet is."""

    message_count: int = 1_000_000
    child_count: int = 1_000_000
    """How many children one root has."""
    root_count: int = 10_000
    host_count: int = 500
    repetitions: int = 10


QUICK = Scale(message_count=5_000, child_count=2_000, root_count=100, host_count=20, repetitions=2)

_FILL = """
INSERT INTO atomic_queue (name, used_ms) SELECT 'queue-' || n, 0 FROM generate_series(1, 20) AS n;

INSERT INTO atomic_limit (name, max_running, quota, started, used_ms)
SELECT 'root root-' || n, 8, 1000, n % 1000, 0 FROM generate_series(0, {roots} - 1) AS n;
INSERT INTO atomic_limit (name, started, used_ms) VALUES ('root million', 5000, 0);
INSERT INTO atomic_root (id, limit_id, declared, state, max_running, budget_children, created_ms, changed_ms)
SELECT substr(name, 6), id, true, 'running', max_running, quota, id, id FROM atomic_limit;

INSERT INTO atomic_message (queue_id, task_id, task_name, root_id, priority, payload, published_ms,
                            root_limit_id, lane, again)
SELECT 1 + n % 20, md5(n::text), 'shop.task_' || n % 50, coalesce(r.id, md5(n::text)), n % 3,
       '{{"body": "[[' || n || ', \\"' || repeat('x', 400) || '\\"], {{}}, {{}}]", '
       '"content-type": "application/json", "headers": {{}}}}',
       (extract(epoch FROM now()) * 1000)::bigint - n, r.limit_id, '0.' || r.limit_id, n % 1000 = 21
  FROM generate_series(1, {messages} + {children}) AS n
  LEFT JOIN atomic_root AS r
    ON r.id = CASE WHEN n > {messages} THEN 'million' WHEN n % 2 = 1 THEN 'root-' || n / 2 % {roots} END;

INSERT INTO atomic_host (id, boot, name, machine, machine_boot, pid, pid_started, slots, busy, labels, queues, versions,
                         started_ms, reported_ms, poll_failures)
SELECT 'host-' || n, 'b', 'worker-' || n || '@machine', 'm', 'b', 1, '1', 16, 4, '{{"zone": "a", "pool": "large"}}',
       '["queue-1", "queue-2"]', '{{"python": "3.11", "celery": "5.7"}}', 0,
       (extract(epoch FROM now()) * 1000)::bigint + 3600000, 0
  FROM generate_series(1, {hosts}) AS n;

INSERT INTO atomic_claim (message_id, queue_id, priority, position, fence, crashes, holder, boot,
                          claimed_ms, lease_until_ms)
SELECT id, queue_id, priority, id, 1, 0, 'host-' || 1 + id % {hosts}, 'b', published_ms,
       (extract(epoch FROM now()) * 1000)::bigint + 3600000
  FROM atomic_message WHERE id <= {hosts} * 6;
INSERT INTO atomic_dead (message_id, queue_id, priority, fence, crashes, reason, buried_ms)
SELECT id, queue_id, priority, 5, 5, 'killed', 1 FROM atomic_message WHERE id > {hosts} * 6 AND id % 100 = 0;
INSERT INTO atomic_delayed (message_id, queue_id, priority, due_ms, fence, crashes)
SELECT id, queue_id, priority, published_ms + 360000000, 0, 0
  FROM atomic_message WHERE id > {hosts} * 6 AND id % 20 = 1;
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT id, queue_id, priority, id, 0, 0
  FROM atomic_message WHERE id > {hosts} * 6 AND id % 100 <> 0 AND id % 20 <> 1 AND lane IS NULL;
INSERT INTO atomic_gated (message_id, queue_id, lane, root_limit_id, priority, position, fence, crashes)
SELECT id, queue_id, lane, root_limit_id, priority, id, 0, 0
  FROM atomic_message WHERE id > {hosts} * 6 AND id % 100 <> 0 AND id % 20 <> 1 AND lane IS NOT NULL;
INSERT INTO atomic_admitted (limit_id, message_id, fence)
SELECT root_limit_id, id, 1 FROM atomic_message WHERE id <= {hosts} * 6 AND root_limit_id IS NOT NULL;

INSERT INTO atomic_fleet_event (at_ms, kind, host, detail)
SELECT n, 'host-registered', 'host-' || n % 50, '{{"reason": "benchmark"}}' FROM generate_series(1, 1000) AS n;

INSERT INTO atomic_traffic (grain_s, begun_ms, shard, kind, band, count, total_ms)
SELECT grain_s,
       (extract(epoch FROM now()) * 1000)::bigint / (grain_s * 1000) * (grain_s * 1000) - back * grain_s * 1000,
       shard, kind, band, 10, 100
  FROM (VALUES (60, 74, 7), (900, 103, 0), (7200, 83, 0)) AS grain (grain_s, most, shards)
 CROSS JOIN LATERAL generate_series(0, most) AS back
 CROSS JOIN LATERAL generate_series(0, shards) AS shard
 CROSS JOIN (VALUES ('succeeded'), ('failed'), ('retried'), ('waited')) AS kinds (kind)
 CROSS JOIN generate_series(4, 12) AS band;
"""
_PAGES = (
    "overview/",
    "host/",
    "host/host-7/",
    "root/",
    "root/?state=budget_exceeded",
    "root/?state=running",
    "root/?id=root-7",
    "root/root-7/",
    "root/million/",
    "message/",
    "message/?state=dead",
    "message/?queue=queue-7",
    "message/?task=shop.task_7&before={middle}",
    "message/?task=shop.none",
    "message/?text=nothing-like-it",
    "message/?id={middle}",
    "message/?root=million",
    "message/?root=million&state=dead",
    "message/?state=limited",
    "message/{middle}/",
    "fleetevent/",
    "term/",
)


def measure(database: Database, scale: Scale) -> dict[str, dict[str, float]]:
    """Fill *database*, then ask for every page."""
    site = Site({"SITE_DATABASE": database.location})
    migrated = site.manage("migrate")
    assert migrated.returncode == 0, migrated.stderr
    counts = {
        "messages": scale.message_count,
        "children": scale.child_count,
        "roots": scale.root_count,
        "hosts": scale.host_count,
    }
    database.execute(_FILL.format(**counts))
    database.execute("VACUUM ANALYZE")
    addresses = [f"/admin/atomic_fleet/{page.format(middle=scale.message_count // 2)}" for page in _PAGES]
    command = [sys.executable, "-m", "tests.benchmarks.page_times", str(scale.repetitions), *addresses]
    run = site.run(command)
    assert run.returncode == 0, run.stderr
    measured: dict[str, dict[str, float]] = json.loads(run.stdout)
    return measured


def reads(database: Database, repetitions: int) -> dict[str, float]:
    """Say how many milliseconds it takes, as the median, to read a root and all roots."""
    store = open_store(f"atomic+{database.location}", Settings())
    verbs: dict[str, Callable[[], object]] = {
        "list": store.roots.list,
        "list --state running": lambda: store.roots.list(state="running"),
    }
    for root in ("root-7", "million"):
        verbs[f"Root.get({root!r})"] = partial(store.roots.get, root)
        verbs[f"Root({root!r}).progress()"] = lambda root=root: (store.roots.get(root), store.roots.unfinished(root))
    measured = {}
    for name, verb in verbs.items():
        took_ms = []
        for _ in range(repetitions + 1):
            began_s = time.perf_counter()
            assert verb()
            took_ms.append((time.perf_counter() - began_s) * 1000)
        measured[name] = round(statistics.median(took_ms[1:]), 1)
    store.close()
    return measured


def table(measured: dict[str, dict[str, float]]) -> str:
    """Write the numbers as a table of Markdown."""
    columns = ("median_ms", "worst_ms", "cpu_ms", "server_cpu_ms", "statements")
    lines = ["| page | median, ms | worst, ms | CPU of the site, ms | CPU of the server, ms | statements |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    for address, values in measured.items():
        lines.append(f"| `{address}` | " + " | ".join(str(values[column]) for column in columns) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Measure, print a table, and say what is over the limits."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks.pages", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small fleet: shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")
    chosen = parser.parse_args(arguments)
    with PostgresServer(durable=True) as server, temporary(server) as database:
        scale = QUICK if chosen.quick else Scale()
        measured, read_ms = measure(database, scale), reads(database, scale.repetitions)
    print(table(measured))
    print("\nReads of roots, ms: " + "; ".join(f"`{name}` {took_ms}" for name, took_ms in read_ms.items()))
    for address, values in measured.items():
        if values["median_ms"] > MOST_MS or values["statements"] > MOST_STATEMENTS:
            print(f"over the limit: {address}: {values}")
    if chosen.json:
        chosen.json.write_text(json.dumps(measured, indent=2))
    return measured


if __name__ == "__main__":
    main()
