"""Run inside of the admin site's project: ask for each page, print its time and its statements as JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any
from unittest import mock

import django


def on_cpu_ms(pid: int) -> float:
    """Say for how long a process has had a CPU: what it would take on a machine that does nothing else."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e6


def measure(client: Any, address: str, repetitions: int) -> dict[str, float]:
    """Ask for a page so often; its statements are counted apart, without a clock running."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from atomic_celery.store.database import Database

    took_ms, cpu_ms, server_ms = [], [], []
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [backend] = cursor.fetchone()
    for _ in range(repetitions + 1):
        began_s, began_cpu_s, began_server_ms = time.perf_counter(), time.process_time(), on_cpu_ms(backend)
        response = client.get(address)
        took_ms.append((time.perf_counter() - began_s) * 1000)
        cpu_ms.append((time.process_time() - began_cpu_s) * 1000)
        server_ms.append(on_cpu_ms(backend) - began_server_ms)
        assert response.status_code == 200, (address, response.status_code)
    ran: list[str] = []
    run = Database.run

    def counting(database: Database, statement: Any, /, **parameters: Any) -> Any:
        ran.append(statement.name)
        return run(database, statement, **parameters)

    with mock.patch.object(Database, "run", counting), CaptureQueriesContext(connection) as captured:
        client.get(address)
    return {
        "median_ms": round(statistics.median(took_ms[1:]), 1),
        "cpu_ms": round(statistics.median(cpu_ms[1:]), 1),
        "server_cpu_ms": round(statistics.median(server_ms[1:]), 1),
        "worst_ms": round(max(took_ms[1:]), 1),
        "first_ms": round(took_ms[0], 1),
        "statements": len(captured) + len(ran),
        "bytes": len(response.content),
    }


def main() -> None:
    """Measure the addresses of the command line."""
    django.setup()
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("benchmark"))
    repetitions, *addresses = sys.argv[1:]
    print(json.dumps({address: measure(client, address, int(repetitions)) for address in addresses}))


if __name__ == "__main__":
    main()
