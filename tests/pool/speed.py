"""How many no-op tasks a second pass through the pool alone, the host's loop included: `python -m tests.pool.speed`.

Celery's own requests are made, run and settled, from messages as a transport would deliver them; there is no broker and
no database. CPU time is printed beside the rate, because it says more than the rate does on a machine that is busy.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any

from celery import Celery
from celery.app.trace import setup_worker_optimizations
from celery.worker.request import Request, create_request_cls  # type: ignore[attr-defined]
from kombu import Message
from kombu.asynchronous import Hub, set_event_loop

from atomic_celery.clock import NEVER
from atomic_celery.concurrency.prefork import TaskPool

HOSTNAME = "speed@pool"
BODY = '[[1], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

app = Celery("speed", broker="memory://")
app.conf.task_ignore_result = True


@app.task(name="noop", acks_late=True)
def noop(_: int) -> None:
    """Do nothing."""


class Run:
    """One measurement of *count* tasks on *children* children."""

    def __init__(self, count: int, children: int) -> None:
        self.count, self.ended_count, self.numbers = count, 0, itertools.count(1)
        self.hub = Hub()
        set_event_loop(self.hub)
        app.finalize()
        setup_worker_optimizations(app, HOSTNAME)
        self.pool = TaskPool(children, app=app, threads=False, initargs=(app, HOSTNAME))
        self.pool.deadlines.trusted_until = lambda message_id, fence: NEVER
        self.pool.start()
        self.pool.register_with_event_loop(self.hub)
        self.request = create_request_cls(Request, noop, self.pool, HOSTNAME, None, app=app)
        while self.pool.free_slots() < children:
            self.hub.run_once()

    def measure(self) -> dict[str, Any]:
        """Run all tasks; return what that took."""
        began_s, host_s, children_s = time.perf_counter(), time.process_time(), self._children_s()
        while self.ended_count < self.count:
            hungry = self.pool.appetite()
            if hungry >= 50 or self.pool.backlog() < 50:
                self._feed(hungry)
            self.hub.run_once()
        took_s = time.perf_counter() - began_s
        answer = {
            "tasks": self.count,
            "tasks_per_s": round(self.count / took_s),
            "host_cpu_us_per_task": round((time.process_time() - host_s) / self.count * 1e6),
            "child_cpu_us_per_task": round((self._children_s() - children_s) / self.count * 1e6),
        }
        self.pool.close()
        self.pool.stop()
        return answer

    def _feed(self, count: int) -> None:
        for number in itertools.islice(self.numbers, min(count, self.count)):
            request = self.request(
                message(number), on_ack=self._settled, on_reject=self._settled, app=app, hostname=HOSTNAME, task=noop
            )
            request.execute_using_pool(self.pool)

    def _settled(self, *_: Any) -> None:
        self.ended_count += 1

    def _children_s(self) -> float:
        ticks = 0
        for pid in self.pool.info["processes"]:
            with open(f"/proc/{pid}/stat") as stat:
                ticks += sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")


def message(number: int) -> Message:
    """Return a message as Celery sends it and the transport delivers it."""
    task_id = f"{number:08d}-0000-4000-8000-000000000000"
    headers: Any = {
        **dict.fromkeys(("shadow", "eta", "expires", "group", "group_index", "parent_id", "stamped_headers")),
        "lang": "py",
        "task": "noop",
        "id": task_id,
        "root_id": task_id,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "(1,)",
        "kwargsrepr": "{}",
        "origin": "gen1@host",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamps": {},
    }
    properties = {
        "correlation_id": task_id,
        "reply_to": "f4d0a3b2-0000-4000-8000-000000000000",
        "delivery_mode": 2,
        "priority": 0,
        "delivery_tag": f"{number}:1",
        "atomic": {"id": number, "fence": 1, "attempts": 1},
    }
    return Message(
        body=BODY,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={"exchange": "", "routing_key": "celery"},
        properties=properties,
        headers=headers,
        channel=None,
    )


if __name__ == "__main__":
    count, children = (int(argument) for argument in (sys.argv[1:] + ["20000", "2"][len(sys.argv) - 1 :]))
    print(json.dumps(Run(count, children).measure(), indent=2))
