from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from atomic_celery import status, trouble
from atomic_celery.config import Settings
from atomic_celery.fleet.controller import TERM
from atomic_celery.fleet.memory import Memory
from atomic_celery.store.roots import RootTerms
from atomic_celery.store.store import open_store
from atomic_celery.store.traffic import Sample
from tests.cli.conftest import CommandLine, World, project
from tests.support.daemons import free_port
from tests.support.postgres import PostgresServer


def test_a_fleet_at_work_is_told_in_numbers(cli: CommandLine, world: World) -> None:
    world.register("h1", busy=1, slots=4, provider_id="i-1")
    world.publish("running")
    world.claim()
    world.publish("ready")
    world.publish("later", due_ms=2**42)
    world.store.messages.bury([world.publish("dead", queue="other")], "why")
    world.queue("reply.1", exclusive_to="somebody")

    told = cli.json("status")

    [host] = told["hosts"]
    assert (host["id"], host["provider_id"], host["state"], host["slots"], host["busy"]) == ("h1", "i-1", "busy", 4, 1)
    queues = {queue["name"]: queue for queue in told["queues"]}
    celery, other = queues["celery"], queues["other"]
    assert (celery["ready"], celery["delayed"], celery["running"], celery["dead"]) == (1, 1, 1, 0)
    assert (celery["hosts"], other["hosts"], other["dead"]) == (1, 0, 1)
    assert queues["reply.1"]["temporary"]
    assert all(queue["at_least"] == [] for queue in told["queues"])
    assert (told["last_hour"]["ended"], told["last_hour"]["waited_p50_ms"]) == (0, None)


def test_the_same_is_told_to_people(cli: CommandLine, world: World) -> None:
    world.register("h1", busy=1)
    world.publish("ready")
    world.queue("reply.1", exclusive_to="somebody")
    world.store.traffic.add("h1", [Sample("failed", 4, 1, 12), Sample("waited", 12, 1, 3000)])

    text = cli("status").stdout

    assert "hosts     1: 1 busy" in text
    assert "last hour 1 ended (1 failed), half ran 12ms (95 % 16ms), half waited 3s (95 % 3s" in text
    assert "1 ready (oldest " in text
    assert "reply.1" not in text
    assert "reply.1" in cli("queues", "--all").stdout


def test_what_is_wanted_is_by_the_policy_of_who_leads(cli: CommandLine, world: World) -> None:
    assert "wanted    0 hosts (demand 0, by the policy of this command's settings)" in cli("status").stdout
    world.store.terms.begin(TERM, "c-1", 600_000)
    plan = {"reasons": [], "scaling": {"desiredHosts": 1, "demand": 9}}
    world.store.controllers.keep(TERM, {}, {**plan, "holder": "c-1", "provisioner": "aws-asg"})

    assert "wanted    1 host (demand 9, as the controller has planned)" in cli("status").stdout


def test_the_controller_is_told_with_its_last_plan_and_its_trouble(cli: CommandLine, world: World) -> None:
    assert cli.json("status")["controller"] is None
    assert "\ncontrol " not in cli("status").stdout

    why = "3 above target, 3 idle, oldest idle 5m12s → drain i-7"
    world.store.terms.begin(TERM, "c-1", 600_000)
    world.store.controllers.keep(TERM, {}, {"reasons": [why], "holder": "c-1", "provisioner": "aws-asg"})
    told = cli.json("status")["controller"]
    assert (told["holder"], told["reasons"], told["provisioner"]) == ("c-1", [why], "aws-asg")
    assert 0 <= told["planned_ago_ms"] < 600_000
    assert re.search(rf"^control   c-1 leads; \w+ ago: {why}$", cli("status").stdout, re.MULTILINE)

    memory = Memory(provider_failures=2, provider_retry_ms=world.store.now_ms() + 300_000)
    world.store.controllers.keep(TERM, memory.document(), {"reasons": ["the provider failed (auth)"]})
    told = cli("status").stdout
    assert re.search(r"c-1 leads; its provider has failed 2 times, asked again in 4m\d+s; .* ago: the provider", told)

    world.store.terms.hand_over(TERM, 1)
    assert "control   nobody leads, no host is added or removed; " in cli("status").stdout
    assert cli.json("status")["controller"]["holder"] is None


def test_the_age_of_the_first_in_line_counts_from_when_it_could_run(world: World) -> None:
    world.store.at(1_000_000)
    world.publish("was delayed", due_ms=1_500_000)
    world.store.at(1_600_000)
    world.store.messages.promote()
    world.store.at(1_700_000)

    [queue] = status.read(world.store).queues

    assert queue.oldest_ready_ms == 200_000


def test_roots_that_use_the_database_are_counted(cli: CommandLine, world: World) -> None:
    roots = world.store.roots
    for name in ("busy", "itself", "paused", "over", "cancelled"):
        roots.set(name, RootTerms(children=10))
    world.publish("child", root_id="busy")
    world.publish("itself", root_id="itself")
    roots.turn("paused", "paused")
    roots.turn("cancelled", "cancelled")

    assert cli.json("status")["roots"] == {"running": 2, "paused": 1, "exact": True}
    assert "roots     2 running, 1 paused" in cli("status").stdout
    assert [roots.in_use(bound).exact for bound in (4, 5)] == [False, True]


def test_a_count_that_stopped_says_at_least(world: World) -> None:
    for name in "abc":
        world.publish(name)
        world.publish(f"later-{name}", queue="slow", due_ms=2**42)

    celery, slow = world.store.reads.depths(bound=2)

    assert (celery.ready, celery.at_least) == (2, ("ready", "delayed"))
    assert (slow.delayed, slow.at_least) == (2, ("delayed",))
    assert world.store.reads.depths(bound=3)[0].at_least == ()


def test_a_lease_that_ran_out_still_counts_as_running(world: World) -> None:
    world.publish("one")
    world.claim()
    world.store.at(world.store.now_ms() + 60_000)

    [depth] = world.store.reads.depths()

    assert (depth.running, depth.lapsed) == (1, 1)


@pytest.fixture
def own_url(own_postgres: PostgresServer) -> str:
    return own_postgres.create_database()


@pytest.fixture
def fleet(own_url: str, tmp_path: Path) -> CommandLine:
    """A migrated database on a server that may be hurt."""
    line = project(tmp_path, f"atomic+{own_url}", patient=False)
    assert line("migrate").returncode == 0
    return line


@pytest.mark.parametrize("words", [("status",), ("messages", "list"), ("drain", "h1")], ids=" ".join)
def test_a_server_that_hangs_is_given_up_on(
    fleet: CommandLine, own_postgres: PostgresServer, words: tuple[str, ...]
) -> None:
    own_postgres.kill(signal.SIGSTOP)

    run = fleet(*words)  # without a limit this would never end

    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("shared store degraded\n  why:  ")
    assert "accepts connections and does not answer" in run.stderr


def test_a_server_that_is_down_is_unknown(fleet: CommandLine, own_postgres: PostgresServer) -> None:
    own_postgres.stop()

    run = fleet("status", "--json")

    assert (run.returncode, run.stdout) == (1, "")
    trouble = json.loads(run.stderr)
    assert trouble["error"] == "shared store unknown"
    assert "refused" in trouble["why"]
    assert "broker_url" in trouble["hint"]


@pytest.mark.parametrize(
    ("content", "fault", "hint"),
    [
        (None, "cannot be read: No such file or directory", "make it readable, or name another"),
        ("", "is empty", "write the secret into it and nothing else"),
    ],
    ids=["missing", "empty"],
)
def test_a_password_file_without_a_password_is_what_is_said(
    postgres_url: str, tmp_path: Path, content: str | None, fault: str, hint: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    parts = urlsplit(postgres_url)
    without = parts._replace(netloc=f"{parts.username}@{parts.hostname}:{parts.port}").geturl()

    run = project(tmp_path, f"atomic+{without}")("--password-file", str(file), "status")

    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"shared store unknown\n  why:  password_file {file} {fault}\n  hint: {hint}\n"


def test_a_wrong_password_is_unknown_and_not_repeated(own_url: str, fleet: CommandLine, tmp_path: Path) -> None:
    wrong = own_url.replace("postgres:", "postgres:hunter2", 1)

    run = project(tmp_path, f"atomic+{wrong}")("status")

    assert run.returncode == 1
    assert run.stderr.startswith("shared store unknown\n")
    assert "hunter2" not in run.stderr


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """Hold a lock that lets others read and not write."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            yield
    else:
        with contextlib.closing(psycopg2.connect(url)) as session, session.cursor() as cursor:
            cursor.execute("LOCK TABLE atomic_setting IN EXCLUSIVE MODE")
            yield
            session.rollback()  # and wait until the server has


def test_reads_that_work_do_not_hide_writes_that_hang(
    cli: CommandLine, world: World, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "hasty").mkdir()
    hasty = project(tmp_path / "hasty", f"atomic+{database_url}", patient=False)
    with locked(database_url):
        run = hasty("status")

    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("shared store degraded\n")
    assert "a write that changes nothing did not commit" in run.stderr
    assert cli("status").returncode == 0


def test_a_table_that_cannot_be_read_is_given_up_on(postgres_url: str) -> None:
    store = open_store(f"atomic+{postgres_url}", Settings())
    store.schema.migrate()
    with contextlib.closing(psycopg2.connect(postgres_url)) as session, session.cursor() as cursor:
        cursor.execute("LOCK TABLE atomic_queue IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(trouble.StoreTrouble) as caught:
            status.read(store)
    store.close()

    assert (caught.value.trouble, caught.value.headline) == ("degraded", "shared store degraded")


def test_a_port_where_nobody_listens_is_unknown() -> None:
    store = open_store(f"atomic+postgresql://u:hunter2@127.0.0.1:{free_port()}/db", Settings())

    with pytest.raises(trouble.StoreTrouble, match="refused") as caught:
        status.read(store)

    assert caught.value.trouble == "unknown"
    assert "hunter2" not in str(caught.value)
