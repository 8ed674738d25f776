"""What one worker says of itself to Prometheus: real ones, asked over HTTP."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import time
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atomic_celery.fleet.exposition import WorkerExposition, Working
from atomic_celery.tally import Tally
from tests.support.promtool import promtool
from tests.support.workers import Fleet, WorkerProcess

LISTEN = ("--metrics-listen", "127.0.0.1:0")


def get(address: str, path: str = "/metrics") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=20)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()


def samples(address: str) -> dict[str, float]:
    """All that a worker says: the name and what its labels say, without what all names begin with."""
    status, text = get(address)
    assert status == 200
    return {
        "/".join([sample.name.removeprefix("atomic_instance_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def said(address: str) -> dict[str, float]:
    """The same without how long anything took, and without what never happened."""
    return {
        name: value
        for name, value in samples(address).items()
        if not name.startswith(("wait_", "run_")) and (value or not name.startswith("attempts_"))
    }


def ready(worker: WorkerProcess) -> str:
    return worker.wait_line("ready")["metrics"]


def test_a_worker_says_what_it_does_and_what_it_has_done(fleet: Fleet) -> None:
    worker = fleet.worker(slots=2, options=(*LISTEN, "--label", "a=secret", "--provider-id", "secret")).start()
    address = ready(worker)
    idle = {"slots/busy": 0, "slots/idle": 2, "leases": 0, "draining": 0, "poll_failures": 0}
    fleet.wait_until(lambda: said(address) == idle, what="it is idle, and its polls succeed")
    fleet.send("gate", "secret", str(fleet.directory))
    fleet.gate("secret")
    fleet.wait_until(lambda: said(address) == {**idle, "slots/busy": 1, "slots/idle": 1, "leases": 1})
    fleet.open_gate("secret")
    fleet.wait_until(lambda: said(address) == {**idle, "attempts_total/succeeded": 1})
    assert get(address, "/healthz") == (200, "ok\n")
    assert get(address, "/scaling")[0] == 404
    assert not re.search("secret|test|postgres|sqlite", get(address)[1])


def test_how_long_messages_waited_and_attempts_ran(fleet: Fleet) -> None:
    """One runs behind a gate while another one waits for its slot."""
    worker = fleet.worker(slots=1, options=LISTEN).start()
    address, began_s = ready(worker), time.monotonic()
    fleet.send("gate", "first", str(fleet.directory))
    fleet.gate("first")
    fleet.send("add", 1, 1)
    sent_s = time.monotonic()
    fleet.wait_until(lambda: time.monotonic() - sent_s > 0.3)
    fleet.open_gate("first")
    fleet.wait_until(lambda: samples(address)["attempts_total/succeeded"] == 2)
    seen, took_s = samples(address), time.monotonic() - began_s
    for name in ("wait", "run"):
        assert seen[f"{name}_seconds_count"] == seen[f"{name}_seconds_bucket/+Inf"] == 2
        assert 0.25 < seen[f"{name}_seconds_sum"] <= took_s * 2
        assert seen[f"{name}_seconds_bucket/0.25"] <= 1
    promtool("check", "metrics", stdin=get(address)[1])


def test_durations_are_told_apart_from_milliseconds_to_hours() -> None:
    tally = Tally()
    for duration_ms in (-5.0, 10.0, 10.1, 59_999.0, 14_400_000.0, 14_400_001.0):
        tally.add("waited", duration_ms)
    tally.add("failed", 70.0)
    tally.add("released", 70.0)  # no end of an attempt
    working = Working(slots=1, busy=0, leases=0, draining=False, poll_failures=0, totals=tally.totals())
    text = WorkerExposition(lambda: working).text().decode()
    counts = dict(re.findall(r'^atomic_instance_wait_seconds_bucket\{le="(.+)"\} (\d+)\.0$', text, re.MULTILINE))
    by_bound = {"0.01": "2", "0.025": "3", "30.0": "3", "60.0": "4", "3600.0": "4", "14400.0": "5", "+Inf": "6"}
    assert {bound: counts[bound] for bound in by_bound} == by_bound
    assert "atomic_instance_wait_seconds_sum 28860.0201" in text
    assert 'atomic_instance_run_seconds_bucket{le="0.1"} 1.0' in text
    assert "atomic_instance_run_seconds_count 1.0" in text
    promtool("check", "metrics", stdin=text)


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
