from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from atomic_celery.config import Settings
from atomic_celery.store.store import open_store
from tests.cli.conftest import PATIENCE_S, CommandLine, World, project
from tests.support.postgres import PostgresServer


def test_events_are_listed_the_latest_last(cli: CommandLine, world: World) -> None:
    world.store.events.record("host-registered", host="h1", instance="i-1")
    world.store.events.record("drain-asked", instance="i-1", detail={"asked_by": "ada@desk", "reason": "new kernel"})

    first, second = cli("events").stdout.splitlines()

    assert first.endswith("host-registered host=h1 instance=i-1")
    assert second.endswith('drain-asked instance=i-1 asked_by=ada@desk reason="new kernel"')
    assert [event["kind"] for event in cli.json("events", "--kind", "drain-asked")] == ["drain-asked"]
    assert [event["kind"] for event in cli.json("events", "--limit", "1")] == ["drain-asked"]


def test_events_of_one_host_instance_or_workflow(cli: CommandLine, world: World) -> None:
    world.store.events.record("host-left", host="h1")
    world.store.events.record("removed", instance="i-1")
    world.store.events.record("root-paused", root="r-1")
    world.store.events.record("removed", instance="i-2")

    for about, kind in (("--host=h1", "host-left"), ("--instance=i-1", "removed"), ("--root=r-1", "root-paused")):
        assert [event["kind"] for event in cli.json("events", about)] == [kind]
    assert cli("events", "--host", "h1", "--instance", "i-1").stdout == ""


def test_reasons_are_written_as_people_read_them(cli: CommandLine, world: World) -> None:
    world.store.events.record("drain-asked", instance="i-1", detail={"why": "3 idle → drain\nü \x1b[31m"})

    [line] = cli("events").stdout.splitlines()

    assert line.endswith(r'why="3 idle → drain\nü \u001b[31m"')


def test_following_ends_when_it_is_interrupted(cli: CommandLine, world: World) -> None:
    world.store.events.record("host-registered", host="h1")
    with subprocess.Popen(
        cli.command("atomic", "events", "--follow"),
        cwd=cli.directory,
        env=cli.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "host-registered" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, *said) == (0, "", "")


@contextmanager
def following(cli: CommandLine, *words: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Follow events; yield them as they come, and what stands on stderr with them."""
    with subprocess.Popen(
        cli.command("atomic", "events", "--follow", "--json", *words),
        cwd=cli.directory,
        env=cli.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield (json.loads(line) if line.startswith("{") else {"host": line} for line in process.stdout)
        finally:
            process.kill()
            process.wait(PATIENCE_S)


def test_following_shows_each_event_once_as_it_comes(cli: CommandLine, world: World) -> None:
    for host in ("h0", "h1"):
        world.store.events.record("host-registered", host=host)
    with following(cli, "--limit", "1") as events:
        seen = [next(events)["host"]]
        for host in ("h2", "h3"):
            world.store.events.record("host-left", host=host)
            seen.append(next(events)["host"])

    assert seen == ["h1", "h2", "h3"]


def test_following_misses_none_that_is_committed_after_a_later_one(postgres_url: str, tmp_path: Path) -> None:
    """Numbers are given when an event is recorded, and it is seen when its transaction ends."""
    url = f"atomic+{postgres_url}"
    with closing(open_store(url, Settings())) as store, closing(open_store(url, Settings(lease_s=600))) as slow:
        store.schema.migrate()
        store.events.record("host-registered", host="first")
        with following(project(tmp_path, url)) as events:
            assert next(events)["host"] == "first"
            with slow.transaction():
                slow.events.record("host-left", host="slow")
                store.events.record("host-left", host="quick")
                assert next(events)["host"] == "quick"
            assert next(events)["host"] == "slow"


def test_following_outlives_a_restart_of_the_database(own_postgres: PostgresServer, tmp_path: Path) -> None:
    url = f"atomic+{own_postgres.create_database()}"
    with closing(open_store(url, Settings())) as store:
        store.schema.migrate()
        store.events.record("host-registered", host="before")
        with following(project(tmp_path, url)) as events:
            assert next(events)["host"] == "before"
            own_postgres.kill()
            assert next(events)["host"].startswith("shared store unknown: ")
            own_postgres.start()
            store.events.record("host-left", host="after")
            assert next(events)["host"] == "after"


def test_events_of_a_database_that_is_away_end_with_1(tmp_path: Path) -> None:
    run = project(tmp_path, "atomic+postgresql://me@127.0.0.1:1/db")("events", "--follow")
    assert (run.returncode, run.stderr.splitlines()[0]) == (1, "shared store unknown")


@pytest.mark.parametrize("said", ["degraded", "provider-degradde"])
def test_a_kind_that_is_none_is_answered_with_those_like_it(cli: CommandLine, said: str) -> None:
    run = cli("events", "--kind", said)

    assert (run.returncode, run.stdout) == (64, "")
    assert f"'{said}' is no kind of event; did you mean provider-degraded" in run.stderr
