from __future__ import annotations

import pytest

from atomic_celery import operations, status
from tests.cli.conftest import CommandLine, World


@pytest.mark.parametrize("target", ["h1", "i-1", "celery@h1"])
def test_a_drained_host_claims_nothing_until_it_is_undrained(cli: CommandLine, world: World, target: str) -> None:
    world.register("h1", provider_id="i-1")

    done = cli.json("drain", target, "--reason", "new kernel")

    assert done == {"instance": "i-1", "hosts": ["h1"], "changed": True}
    [host] = cli.json("hosts")
    assert (host["state"], host["drain"]["reason"]) == ("draining", "new kernel")
    assert host["drain"]["asked_by"] == operations.asker()

    assert cli.json("undrain", target)["changed"] is True
    [host] = cli.json("hosts")
    assert (host["state"], host["drain"]) == ("idle", None)


def test_asking_again_changes_nothing_and_records_nothing(cli: CommandLine, world: World) -> None:
    world.register("h1")

    assert cli.json("drain", "h1")["changed"] is True
    assert cli.json("drain", "h1")["changed"] is False
    assert cli.json("undrain", "h1")["changed"] is True
    assert cli.json("undrain", "h1")["changed"] is False

    assert [event.kind for event in world.store.events.list()] == ["drain-forgotten", "drain-asked"]


def test_an_instance_can_be_drained_before_its_host_comes(cli: CommandLine, world: World) -> None:
    assert "no host is registered under it now" in cli("drain", "i-9", "--reason", "too old").stdout

    assert "DRAINED, NO HOST NOW" in cli("status").stdout
    world.register("h9", provider_id="i-9")
    assert [host["state"] for host in cli.json("hosts")] == ["draining"]


def test_a_name_that_two_hosts_have_is_not_guessed_at(world: World) -> None:
    world.register("h1", name="celery@web")
    world.register("h2", name="celery@web")

    done = operations.drain(world.store, "celery@web", reason="", asked_by="ada")

    assert (done.instance, done.hosts) == ("celery@web", ())


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
