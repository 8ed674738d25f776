from __future__ import annotations

import pytest

from atomic_celery import operations, status
from tests.cli.conftest import CommandLine, World


def test_a_drained_host_is_shown_with_the_reason_until_it_is_undrained(cli: CommandLine, world: World) -> None:
    world.register("h1", provider_id="i-1")

    done = cli.json("drain", "celery@h1", "--reason", "new kernel")

    assert done == {"instance": "i-1", "hosts": ["h1"], "changed": True}
    [host] = cli.json("hosts")
    assert (host["state"], host["drain"]["reason"]) == ("draining", "new kernel")
    assert host["drain"]["asked_by"] == operations.asker()

    assert cli("undrain", "i-1").stdout == "i-1: drain lifted\n  host h1\n"
    [host] = cli.json("hosts")
    assert (host["state"], host["drain"]) == ("idle", None)


@pytest.mark.parametrize("target", ["h1", "i-1", "celery@h1"])
def test_a_drained_host_claims_nothing_whatever_it_was_called_by(world: World, target: str) -> None:
    world.register("h1", provider_id="i-1")
    world.publish("one")

    done = operations.drain(world.store, target, reason="", asked_by="ada")

    assert (done.instance, done.hosts, done.changed) == ("i-1", ("h1",), True)
    assert world.claim(holder="h1", is_host=True) == []
    assert operations.undrain(world.store, target, asked_by="ada") == done
    assert len(world.claim(holder="h1", is_host=True)) == 1


def test_asking_again_changes_nothing_and_records_nothing(world: World) -> None:
    world.register("h1")

    drained = [operations.drain(world.store, "h1", reason=reason, asked_by="ada") for reason in ("first", "second")]
    undrained = [operations.undrain(world.store, "h1", asked_by="bob") for _ in range(2)]

    assert [done.changed for done in drained + undrained] == [True, False, True, False]
    lifted, asked = world.store.events.list()
    assert (asked.kind, asked.detail) == ("drain-asked", {"asked_by": "ada", "reason": "first"})
    assert (lifted.kind, lifted.detail) == ("drain-forgotten", {"asked_by": "bob"})


def test_an_instance_can_be_drained_before_its_host_comes(cli: CommandLine, world: World) -> None:
    assert cli("drain", "i-9", "--reason", "too old").stdout == (
        "i-9: noted; no host or instance of that name is known now, "
        "the next to register with it as its id takes nothing\n"
    )

    assert "DRAINED, NO HOST NOW" in cli("status").stdout
    world.register("h9", provider_id="i-9")
    assert [host["state"] for host in cli.json("hosts")] == ["draining"]


@pytest.mark.parametrize("words", [("drain",), ("undrain",), ("events", "--host")], ids=" ".join)
def test_a_name_that_two_hosts_have_is_not_guessed_at(cli: CommandLine, world: World, words: tuple[str, ...]) -> None:
    world.register("h1", name="celery@web")
    world.register("h2", name="celery@web", busy=1)

    run = cli(*words, "celery@web")

    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "Error: 2 hosts are called celery@web: h1 (idle), h2 (busy); name one by its id\n"
    assert (world.store.hosts.drains(), world.store.events.list()) == ([], [])
    assert cli("drain", "h2").returncode == 0
    assert [host["state"] for host in cli.json("hosts")] == ["idle", "draining"]


def test_a_drain_that_was_noted_under_a_name_can_be_taken_back_when_several_hosts_have_it(
    cli: CommandLine, world: World
) -> None:
    cli("drain", "celery@web")
    world.register("h1", name="celery@web")
    world.register("h2", name="celery@web")

    assert cli("undrain", "celery@web").stdout == "celery@web: drain lifted\n"
    assert world.store.hosts.drains() == []


@pytest.mark.parametrize("target", ["h1", "celery@h1", "nosuch"])
def test_taking_back_a_drain_that_was_none_is_a_failure(cli: CommandLine, world: World, target: str) -> None:
    world.register("h1")

    run = cli("undrain", target)

    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith("nosuch: was not drained" if target == "nosuch" else "h1: was not drained")


def test_events_of_a_host_are_found_by_its_name(cli: CommandLine, world: World) -> None:
    world.register("h1")
    world.store.events.record("host-left", host="h1")
    world.store.events.record("host-left", host="h2")

    assert [event["host"] for event in cli.json("events", "--host", "celery@h1")] == ["h1"]


def test_hosts_are_filtered_by_state(cli: CommandLine, world: World) -> None:
    world.register("h1", busy=2, labels={"zone": "a"}, slots=4)
    world.register("h2")

    [host] = cli.json("hosts", "--state", "busy")

    assert (host["id"], host["busy"], host["slots"], host["labels"]) == ("h1", 2, 4, {"zone": "a"})
    line = next(line for line in cli("hosts").stdout.splitlines() if "celery@h1" in line)
    assert line.split()[0] == "busy"
    assert "zone=a" in line


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "idle"),
        ({"busy": 1}, "busy"),
        ({"busy": 1, "poll_failures": 3}, "degraded"),
        ({"busy": 1, "poll_failures": 3, "draining": True}, "draining"),
        ({"busy": 1, "poll_failures": 3, "draining": True, "reported_ago_ms": 15_001}, "stale"),
        ({"reported_ago_ms": 15_000}, "idle"),
    ],
)
def test_the_state_that_matters_most_is_the_one_that_is_named(facts: dict[str, int], state: str) -> None:
    known = {"reported_ago_ms": 0, "draining": False, "poll_failures": 0, "busy": 0, "stale_after_s": 15.0}

    assert status.state_of(**(known | facts)) == state  # type: ignore[arg-type]
