from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from atomic_celery import doctor
from atomic_celery.config import Settings
from atomic_celery.store.store import open_store
from tests.cli.conftest import CommandLine, World, project
from tests.support.waiting import wait_until


def findings(cli: CommandLine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli.json("doctor")["checkup"]["findings"]
    return found


def test_a_sound_fleet_has_nothing_wrong(cli: CommandLine, world: World) -> None:
    world.register("h1")
    world.publish("one")

    run = cli("doctor")

    assert run.returncode == 0
    assert run.stdout.endswith("nothing is wrong\n")
    assert "atomic_lease" in run.stdout
    assert "clock offset" in run.stdout


def test_every_problem_is_named_at_once_with_its_mend(cli: CommandLine, world: World) -> None:
    world.store.messages.bury([world.publish("dead", queue="graves")], "why")
    world.publish("lonely", queue="nobody")

    found = findings(cli)

    assert {finding["level"] for finding in found} == {"warning"}
    [graves] = [finding for finding in found if "graves" in finding["what"]]
    [nobody] = [finding for finding in found if "nobody" in finding["what"]]
    assert "1 dead messages" in graves["what"]
    assert "messages list --state dead --queue graves" in graves["mend"]
    assert "no serving host" in nobody["what"]
    assert "-Q nobody" in nobody["mend"]


def test_a_message_in_no_state_or_two_breaks_the_first_invariant(
    cli: CommandLine, world: World, database_url: str
) -> None:
    lost, doubled = world.publish("lost"), world.publish("doubled")
    tamper(database_url, f"DELETE FROM atomic_ready WHERE message_id = {lost}")
    columns = "message_id, queue_id, priority, fence, crashes, reason, buried_ms"
    tamper(database_url, f"INSERT INTO atomic_dead ({columns}) VALUES ({doubled}, 1, 3, 0, 0, 'by hand', 0)")

    run = cli("doctor")

    assert run.returncode == 1
    assert f"error: message {lost} is in no state at all" in run.stdout
    assert f"error: message {doubled} is in ready, dead" in run.stdout


def test_settings_under_a_namespace_count(sqlite_url: str, tmp_path: Path) -> None:
    cli = project(tmp_path, f"atomic+{sqlite_url}")
    with (tmp_path / "app.py").open("a") as app:
        app.write("conf = type('Conf', (), {'CELERY_ATOMIC_LEASE': 24, 'CELERY_ATOMIC_RENEW_EVERY': 6})\n")
        app.write(f"conf.CELERY_BROKER_URL = 'atomic+{sqlite_url}'\n")
        app.write("app.config_from_object(conf, namespace='CELERY')\n")
    assert cli("migrate").returncode == 0

    settings = cli.json("doctor")["checkup"]["settings"]

    assert (settings["atomic_lease"], settings["atomic_renew_every"]) == (24, 6)


def test_the_setup_is_checked_before_the_database(tmp_path: Path) -> None:
    password = tmp_path / "password"
    cli = project(tmp_path, "atomic+postgresql://u@127.0.0.1:1/db")

    run = cli("--password-file", str(password), "doctor")

    assert run.returncode == 1
    assert f"error: the password-file {password} cannot be read" in run.stdout


def test_missing_tables_are_a_problem_with_a_command(cli: CommandLine) -> None:
    run = cli("doctor")

    assert run.returncode == 1
    assert "atomic migrate" in run.stdout


def test_no_secret_is_printed(postgres_url: str, tmp_path: Path) -> None:
    store = open_store(f"atomic+{postgres_url}", Settings())
    store.schema.migrate()
    store.close()
    password = postgres_url.split(":")[2].split("@")[0]

    run = project(tmp_path, f"atomic+{postgres_url}")("doctor")

    assert run.returncode == 0
    assert password
    assert password not in run.stdout + run.stderr


@pytest.fixture
def broken(postgres_url: str) -> Any:
    store = open_store(f"atomic+{postgres_url}", Settings())
    store.schema.migrate()
    yield store
    store.close()


def test_autovacuum_switched_off_for_a_table_is_an_error(broken: Any, postgres_url: str) -> None:
    tamper(postgres_url, "ALTER TABLE atomic_ready SET (autovacuum_enabled = false)")

    checkup = doctor.examine(postgres_url, Settings())

    [finding] = checkup.findings
    assert (finding.level, finding.what) == ("error", "autovacuum is off for atomic_ready")
    assert "RESET (autovacuum_enabled)" in finding.mend
    assert not checkup.healthy


def test_who_keeps_an_old_snapshot_is_named(broken: Any, postgres_url: str) -> None:
    with contextlib.closing(psycopg2.connect(postgres_url, application_name="report")) as session:
        session.cursor().execute("SELECT 1 FROM atomic_ready")

        [old] = [old for old in broken.reads.snapshots(0) if old.application == "report"]

        assert (old.kind, old.state) == ("session", "idle in transaction")
        assert old.name == str(session.info.backend_pid)
    # The server notices a moment later that its client has gone.
    wait_until(lambda: not [old for old in broken.reads.snapshots(0) if old.application == "report"])


def test_more_hosts_than_connections_are_warned_of(broken: Any, postgres_url: str) -> None:
    world = World(broken)
    for number in range(3):
        world.register(f"h{number}", slots=1000)

    [finding] = doctor.examine(postgres_url, Settings()).findings
    assert "3 hosts may need 3012 connections" in finding.what
    assert "set max_connections to 3628 or more" in finding.mend
    assert doctor.examine(postgres_url, Settings(notify=False)).findings == []


def test_the_connections_of_the_fleet_at_its_largest_are_computed(broken: Any, postgres_url: str) -> None:
    facts = doctor.examine(postgres_url, Settings(max_hosts=20, workers_per_host=8)).facts
    assert facts["connection budget"] == (
        "240 for 20 hosts of 8 slots (4 each and one a slot), 9 for controllers, metrics and beat, a fifth to spare: "
        "max_connections of 302 or more"
    )


def test_work_that_nobody_moves_is_found(world: World) -> None:
    now_ms = world.store.now_ms()
    world.publish("held")
    world.claim()
    world.publish("due", due_ms=now_ms + 1000)
    world.store.at(now_ms + 10 * 60_000)

    overdue = world.store.reads.overdue(60_000)

    assert (overdue.lapsed, overdue.due) == (1, 1)
    assert world.store.reads.overdue(3_600_000).lapsed == 0


def tamper(url: str, statement: str) -> None:
    """Change the tables behind the store's back."""
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(statement))
    engine.dispose()
