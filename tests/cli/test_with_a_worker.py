"""The commands beside a real worker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atomic_celery.store.store import Store
from tests.cli.conftest import PATIENCE_S, CommandLine
from tests.support.waiting import wait_until

APP = """\
import pathlib
import time

import tests.support.patience
from celery import Celery

app = Celery("app", broker={broker!r})


@app.task(name="proj.wait")
def wait(path, api_key=None):
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
"""


@pytest.fixture
def cli(broker_url: str, tmp_path: Path) -> CommandLine:
    (tmp_path / "app.py").write_text(APP.format(broker=broker_url))
    return CommandLine(tmp_path)


@pytest.fixture
def worker(cli: CommandLine, store: Store) -> Iterator[subprocess.Popen[bytes]]:
    words = ("worker", "-P", "atomic", "-n", "night@shift", "-c", "1", "--provider-id", "i-1", "--label", "zone=a")
    with (
        (cli.directory / "worker.log").open("wb") as log,
        subprocess.Popen(
            cli.command(*words),
            cwd=cli.directory,
            env=cli.environment | {"ATOMIC_STATE_DIR": str(cli.directory)},
            stderr=log,
            stdout=log,
        ) as process,
    ):
        yield process
        process.kill()


def test_where_is_my_task_and_how_do_i_stop_its_host(
    cli: CommandLine, store: Store, worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    def log() -> str:
        return (cli.directory / "worker.log").read_text()

    go = tmp_path / "go"
    call = cli.celery("call", "proj.wait", f'--args=["{go}"]', '--kwargs={"api_key": "hunter2"}')
    task_id = call.stdout.strip()

    def status_when(state: str) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            told: dict[str, Any] = cli.json("status")
            return told if [host["state"] for host in told["hosts"]] == [state] else None

        return wait_until(seen, PATIENCE_S, log) or {}

    [host] = status_when("busy")["hosts"]
    assert (host["name"], host["provider_id"], host["labels"], host["slots"]) == (
        "night@shift",
        "i-1",
        {"zone": "a"},
        1,
    )
    shown = cli("messages", "show", task_id).stdout
    assert "held by night@shift, lease ends in" in shown
    assert "hunter2" not in shown

    assert cli.json("drain", "night@shift", "--reason", "new kernel")["hosts"] == [host["id"]]
    assert [queue["hosts"] for queue in status_when("draining")["queues"] if queue["name"] == "celery"] == [0]
    go.touch()

    assert worker.wait(PATIENCE_S) == 0, log()
    told = cli.json("status")
    assert told["hosts"] == [], log()
    assert [drain["instance"] for drain in told["drains"]] == ["i-1"]
    assert f"no unfinished message {task_id}:" in cli("messages", "show", task_id).stderr
