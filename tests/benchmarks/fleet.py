"""What 200 hosts cost the database when they do nothing but renew their leases and report themselves."""

from __future__ import annotations

import os
import time
from pathlib import Path

from atomic_celery.config import Settings
from atomic_celery.store import open_store
from atomic_celery.store.hosts import HostReport
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import Held, Holder, Lane, NewMessage
from atomic_celery.store.store import Store
from tests.benchmarks.database import Database
from tests.support.hosts import new_host

HOST_COUNT, LEASES_EACH = 200, 16
_REPORT_EVERY_S, _RENEW_EVERY_S = 5.0, 10.0
_REPORT = HostReport(slots=LEASES_EACH, busy=LEASES_EACH, queues=["bench"])


def measure(database: Database, server_pid: int, seconds: float) -> dict[str, float]:
    """Percent of one core that the server spends, from its processes' own counters."""
    store = open_store(f"atomic+{database.location}", Settings())
    store.schema.migrate()
    fleet = _register(store)
    _round(store, fleet, 0)  # connects, prepares
    before_s, started = _cpu_s(server_pid), time.perf_counter()
    turn = 0
    while (elapsed_s := time.perf_counter() - started) < seconds:
        # A tenth of the fleet every half second: everybody reports each 5 s, and renews each second time.
        _round(store, fleet, turn)
        turn += 1
        time.sleep(max(0.0, turn * _REPORT_EVERY_S / 10 - elapsed_s))  # the pace is what is simulated
    spent_s = _cpu_s(server_pid) - before_s
    store.close()
    database.cost()  # waits until all sessions have ended and told their statistics
    hot = database.value(
        "SELECT 100.0 * n_tup_hot_upd / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'atomic_claim'"
    )
    return {"percent_of_one_core": 100 * spent_s / elapsed_s, "hot_percent": float(hot)}


def _register(store: Store) -> list[tuple[Holder, list[Held]]]:
    queue_id = store.queues.declare(QueueSpec(name="bench")).id
    store.messages.publish([NewMessage(queue_id=queue_id, payload="x")] * (HOST_COUNT * LEASES_EACH))
    fleet = []
    for number in range(HOST_COUNT):
        holder = Holder(f"host-{number}", "boot", is_host=True)
        store.hosts.register(new_host(holder.id, holder.boot, slots=LEASES_EACH, busy=LEASES_EACH, queues=["bench"]))
        claimed = store.messages.claim(holder, [Lane(queue_id, 0)], LEASES_EACH, 600_000)
        fleet.append((holder, [message.held for message in claimed]))
    return fleet


def _round(store: Store, fleet: list[tuple[Holder, list[Held]]], turn: int) -> None:
    renews = (turn // 10) % int(_RENEW_EVERY_S / _REPORT_EVERY_S) == 0
    for holder, held in fleet[turn % 10 :: 10]:
        store.hosts.report(holder.id, holder.boot, _REPORT)
        if renews:
            assert not store.messages.renew(holder, held, 600_000).lost


def _cpu_s(server_pid: int) -> float:
    """Seconds of processor time of a server and all its processes, those that ended included."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in [server_pid, *_children(server_pid)]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        own, of_ended_children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        total += own + (of_ended_children if pid == server_pid else 0)
    return total / ticks


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
