"""What one worker says of itself to Prometheus: real ones, asked over HTTP."""

from __future__ import annotations

import http.client
import re
import signal
import socket
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.workers import Fleet, WorkerProcess

LISTEN = ("--metrics-listen", "127.0.0.1:0")


def get(address: str, path: str = "/metrics") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=20)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()


def said(address: str) -> dict[str, float]:
    status, text = get(address)
    assert status == 200
    return {
        "/".join([sample.name.removeprefix("atomic_instance_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ready(worker: WorkerProcess) -> str:
    return worker.wait_line("ready")["metrics"]


def test_a_worker_says_what_it_does_and_what_it_has_done(fleet: Fleet) -> None:
    worker = fleet.worker(slots=2, options=(*LISTEN, "--label", "a=secret", "--provider-id", "secret")).start()
    address = ready(worker)
    idle = {"slots/busy": 0, "slots/idle": 2, "leases": 0, "draining": 0, "poll_failures": 0}
    assert said(address) == idle
    fleet.send("gate", "secret", str(fleet.directory))
    fleet.gate("secret")
    fleet.wait_until(lambda: said(address) == {**idle, "slots/busy": 1, "slots/idle": 1, "leases": 1})
    fleet.open_gate("secret")
    fleet.wait_until(lambda: said(address) == {**idle, "attempts_total/succeeded": 1})
    assert get(address, "/healthz") == (200, "ok\n")
    assert get(address, "/scaling")[0] == 404
    assert not re.search("secret|test|postgres|sqlite", get(address)[1])


def test_a_worker_that_drains_has_no_idle_slots_and_says_so_until_it_ends(fleet: Fleet) -> None:
    worker = fleet.worker(slots=2, options=LISTEN).start()
    address = ready(worker)
    fleet.send("gate", "g", str(fleet.directory))
    fleet.gate("g")
    worker.signal(signal.SIGTERM)
    worker.wait_line("draining")
    drains = {"slots/busy": 1, "slots/idle": 0, "leases": 1, "draining": 1, "poll_failures": 0}
    fleet.wait_until(lambda: said(address) == drains)
    fleet.open_gate("g")
    assert worker.wait() == 0
    with pytest.raises(OSError, match="refused"):
        get(address)


@pytest.mark.parametrize("taken", [True, False])
def test_where_nobody_can_listen_no_worker_starts(fleet: Fleet, taken: bool) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}" if taken else "nowhere"
        worker = fleet.worker(options=("--metrics-listen", listen)).start()
        assert worker.wait() == 1
    assert "Worker host setup is incomplete" in worker.log
    assert ("cannot listen on" if taken else "looks like 127.0.0.1:9464") in worker.log
    assert "fix: correct atomic_metrics_listen" in worker.log
